"""Capture a function of tensors as a CUDA graph, and replay it on other inputs.

A captured function has static input and output buffers, which live as long as the engine. Everything else that it uses
(weights, caches) is accessed at the addresses it had during the capture.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from legato.errors import StateError, UnsupportedError

WARM_UPS = 2
"""Calls before a capture. In its first calls, a library selects kernels and allocates workspaces."""

Function = Callable[..., tuple[Tensor, ...]]
"""Takes and returns tensors, batch dimension first. Shapes and kernel launches must not depend on values."""


class GraphRecorder:
    """Captures graphs on one device. The graphs share a memory pool, so one thread must replay them one at a time."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.captured = 0
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def capture(self, function: Callable[[], tuple[Tensor, ...]]) -> tuple[torch.cuda.CUDAGraph, tuple[Tensor, ...]]:
        """The graph of `function` and its output buffers. Calls `function` `WARM_UPS` times before the capture."""
        current = torch.cuda.current_stream(self.device)
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            for _ in range(WARM_UPS):
                function()
        current.wait_stream(self._stream)
        graph = torch.cuda.CUDAGraph()
        # "thread_local": other threads may use the device during the capture.
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"):
            results = function()
        self.captured += 1
        return graph, results


class Captured:
    """A function captured for a fixed number of rows. Calls with fewer rows are padded with rows of `idle`.

    `idle`: inputs for all rows, whose results are discarded. The function is captured with them, so they must not
    change the state of any sequence: they use spare slots.
    """

    def __init__(self, recorder: GraphRecorder, name: str, function: Function, idle: tuple[Tensor, ...]) -> None:
        self._name = name
        self._idle = idle
        self._inputs = tuple(each.clone() for each in idle)
        self.rows = idle[0].shape[0]
        try:
            self._graph, self._results = recorder.capture(lambda: function(*self._inputs))
        except RuntimeError as error:
            raise UnsupportedError(
                f"{name} could not be captured as a CUDA graph: {error}; run without CUDA graphs (--no-cuda-graphs, "
                "or cuda_graphs=False in legato.load)",
                field="cuda_graphs",
            ) from error

    def __call__(self, *given: Tensor) -> tuple[Tensor, ...]:
        """The results for the inputs `given`, copied so that they stay valid after the next call.

        Inputs may be on the host or on the device. Raises `StateError` for another shape or dtype than captured.
        """
        rows = given[0].shape[0]
        for buffer, new, idle in zip(self._inputs, given, self._idle, strict=True):
            if rows > self.rows or new.shape != (rows, *buffer.shape[1:]) or new.dtype != buffer.dtype:
                raise StateError(
                    f"{self._name} was captured for {buffer.dtype} {tuple(buffer.shape)}, and got {new.dtype} "
                    f"{tuple(new.shape)}"
                )
            buffer[:rows].copy_(new)
            if rows < self.rows:
                buffer[rows:].copy_(idle[rows:])
        self._graph.replay()
        return tuple(each[:rows].clone() for each in self._results)


def sizes(most: int, least: int = 1) -> tuple[int, ...]:
    """The sizes to capture: `least` times powers of two below `most`, then `most`."""
    smaller: list[int] = []
    while least < most:
        smaller.append(least)
        least *= 2
    return (*smaller, most)


def fitting(captured: tuple[int, ...], wanted: int) -> int:
    """The smallest captured size that is at least `wanted`; `StateError` if there is none."""
    for size in captured:
        if size >= wanted:
            return size
    raise StateError(f"{wanted} is larger than all captured sizes {captured}")
