"""Device work recorded once and launched again by one call: CUDA graphs.

Owns, for the life of an engine, the memory in which a recorded function finds its inputs and leaves its results. Knows
no model: a function of tensors is recorded, whatever it computes. What the function takes from elsewhere (weights,
caches) it reads and writes where it stood when it was recorded.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from legato.errors import StateError, UnsupportedError

WARM_UPS = 2
"""Calls before a recording: libraries choose kernels and take their memory in the first ones."""

Function = Callable[..., tuple[Tensor, ...]]
"""Tensors in, tensors out, batch rows first. Shapes and launches depend on no value, and the host reads none."""


class Recorder:
    """Records on one device. Its graphs share memory: they are launched by one thread, one after another."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.recorded = 0
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def record(self, work: Callable[[], tuple[Tensor, ...]]) -> tuple[torch.cuda.CUDAGraph, tuple[Tensor, ...]]:
        """The graph of `work`, and where each launch leaves the results. `work` is also called, to warm up."""
        here = torch.cuda.current_stream(self.device)
        self._stream.wait_stream(here)
        with torch.cuda.stream(self._stream):
            for _ in range(WARM_UPS):
                work()
        here.wait_stream(self._stream)
        graph = torch.cuda.CUDAGraph()
        # Only this thread's work is held to the rules of recording: others may be busy on the device.
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"):
            results = work()
        self.recorded += 1
        return graph, results


class Captured:
    """A function at one number of rows. Calls with fewer rows are filled up with `idle` ones.

    `idle`: inputs for all rows that nobody is interested in. They are what the function is recorded with, so they must
    touch nothing that belongs to somebody.
    """

    def __init__(self, recorder: Recorder, name: str, function: Function, idle: tuple[Tensor, ...]) -> None:
        self._name = name
        self._idle = idle
        self._inputs = tuple(each.clone() for each in idle)
        self.rows = idle[0].shape[0]
        try:
            self._graph, self._results = recorder.record(lambda: function(*self._inputs))
        except RuntimeError as error:
            raise UnsupportedError(
                f"{name} could not be recorded as a CUDA graph: {error}; without graphs (--no-graphs, or graphs=False "
                "of legato.load) everything is launched call by call",
                field="graphs",
            ) from error

    def __call__(self, *given: Tensor) -> tuple[Tensor, ...]:
        """What the function gives for `given`: copies, which stay when it is called again.

        The inputs may lie on the host or the device. One whose shape or dtype was not recorded is a `StateError`.
        """
        rows = given[0].shape[0]
        for place, new, idle in zip(self._inputs, given, self._idle, strict=True):
            if rows > self.rows or new.shape != (rows, *place.shape[1:]) or new.dtype != place.dtype:
                raise StateError(
                    f"{self._name} was recorded for {place.dtype} {tuple(place.shape)}, and got {new.dtype} "
                    f"{tuple(new.shape)}"
                )
            place[:rows].copy_(new)
            if rows < self.rows:
                place[rows:].copy_(idle[rows:])
        self._graph.replay()
        return tuple(each[:rows].clone() for each in self._results)


def sizes(most: int, least: int = 1) -> tuple[int, ...]:
    """The sizes that are recorded: powers of two times `least` below `most`, then `most`."""
    steps: list[int] = []
    while least < most:
        steps.append(least)
        least *= 2
    return (*steps, most)


def fitting(recorded: tuple[int, ...], wanted: int) -> int:
    """The smallest recorded size that holds `wanted`; `StateError` where none does."""
    for size in recorded:
        if size >= wanted:
            return size
    raise StateError(f"{wanted} do not fit what was recorded, {recorded}")
