"""Split the time of an engine step into model kernels and overhead.

Runs without operator timing, which measure the total time, alternate with runs in which every operator is timed, which
measure the kernels. CPU only, because there an operator returns when its kernel has finished.
"""

from __future__ import annotations

import re
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, is_dataclass, replace

import torch
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

from legato.backends.base import Backend
from legato.bench.batch import SteadyBatch
from legato.bench.records import EngineStepTiming
from legato.bench.steps import frame_sampling, time_repeatedly
from legato.config.engine import EngineConfig
from legato.engine.assembly import assemble
from legato.engine.frontend import FrontEnd
from legato.engine.packetizer import WIDE_FRAMES
from legato.engine.stream import StreamRequest
from legato.errors import StateError

WARM_UP_STEPS = 4
STEPS = WIDE_FRAMES
"""Steps that are timed together: the maximum frames of a codec window. The fastest of `GROUPS` groups is used."""
GROUPS = 6
"""Number of groups with and without operator timing. They alternate, so that machine load affects both equally."""
CLASSES = ("gemm", "other kernels", "copies")
MAX_SEQ_LEN = 256
SAMPLING_S = 0.2

GEMM = re.compile(r"mm|linear|conv|matmul|attention|int4|int8|quantized|onednn|mkldnn")
COPIES = re.compile(
    r"\.(copy_|clone|contiguous|_?reshape\w*|cat|stack|to|_to_copy|index\w*|gather|scatter\w*|fill_|zero_|zeros\w*"
    r"|ones\w*|full\w*|masked_fill\w*|embedding|constant_pad_nd|pad|repeat\w*|item|_local_scalar_dense|lift_fresh)$"
)
VIEWS = re.compile(
    r"\.(view\w*|_unsafe_view|t|transpose\w*|slice|select|narrow|expand\w*|unsqueeze|squeeze|as_strided\w*"
    r"|permute|unbind|split\w*|chunk|unflatten|flatten|alias|detach_?|empty\w*|new_\w+|resolve_\w+|resize_|result_type)$"
)


def measure_engine_step(
    backend: Backend, front_end: FrontEnd, request: StreamRequest, streams: int
) -> EngineStepTiming:
    """Time an engine step in which each of `streams` streams generates a frame, and split it by kind of work."""
    batch = _started(backend, front_end, request, streams)
    plain_s, operators = [], []
    for _ in range(GROUPS):
        plain_s.append(_run_steps(batch, streams))
        operators.append(_timed_by_class(backend, lambda: _run_steps(batch, streams)))
    step_s, kernels = min(plain_s) / STEPS, _fastest(operators)
    batch.stop()

    # Sampling uses the same operators as the models, so it is measured separately and subtracted.
    sample = frame_sampling(backend, streams)
    with torch.inference_mode():
        sampling_s = statistics.median(time_repeatedly(sample, lambda: None, SAMPLING_S))
        sampling = _fastest([_timed_by_class(backend, lambda: [sample() for _ in range(STEPS)]) for _ in range(GROUPS)])
    gemm_s, other_s, copies_s = (max(0.0, kernels[name] - sampling[name]) / STEPS for name in CLASSES)
    return EngineStepTiming(
        rows=streams,
        steps=GROUPS * STEPS,
        step_ms=1000 * step_s,
        gemm_ms=1000 * gemm_s,
        other_kernels_ms=1000 * other_s,
        copies_ms=1000 * copies_s,
        sampling_ms=1000 * sampling_s,
        host_ms=1000 * max(0.0, step_s - gemm_s - other_s - copies_s - sampling_s),
    )


def _started(backend: Backend, front_end: FrontEnd, request: StreamRequest, streams: int) -> SteadyBatch:
    """A batch of streams after prefill and warm-up."""
    parts = assemble(
        backend, EngineConfig(max_num_seqs=streams, kv_slots=streams, max_seq_len=MAX_SEQ_LEN), time.perf_counter
    )
    frames = WARM_UP_STEPS + (2 * GROUPS + 1) * STEPS
    batch = SteadyBatch(parts, front_end, request, streams=streams, frames=frames)
    for _ in range(WARM_UP_STEPS):
        batch.step()
    return batch


def _run_steps(batch: SteadyBatch, streams: int) -> float:
    """Duration of `STEPS` steps. Raises `StateError` if a stream did not generate a frame in each of them."""
    before, started = batch.frames_generated, time.perf_counter()
    for _ in range(STEPS):
        batch.step()
    elapsed_s = time.perf_counter() - started
    frames = batch.frames_generated - before
    if frames != streams * STEPS:
        raise StateError(f"{streams} streams generated {frames} frames in {STEPS} steps")
    return elapsed_s


class OperatorTimer(TorchDispatchMode):
    """Sums the time of each torch operator that runs while the mode is active."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seconds: defaultdict[str, float] = defaultdict(float)

    def __torch_dispatch__(
        self, func: OpOverload, types: object, args: tuple[object, ...] = (), kwargs: dict[str, object] | None = None
    ) -> object:
        started = time.perf_counter()
        result: object = func(*args, **(kwargs or {}))
        self.seconds[str(func).rpartition(".")[0]] += time.perf_counter() - started
        return result


def by_class(operators: Mapping[str, float]) -> dict[str, float]:
    """Sum the time of operators for each of `CLASSES`. Views are excluded because they compute nothing."""
    found = dict.fromkeys(CLASSES, 0.0)
    for name, seconds in operators.items():
        if GEMM.search(name):
            found["gemm"] += seconds
        elif COPIES.search(name):
            found["copies"] += seconds
        elif not VIEWS.search(name):
            found["other kernels"] += seconds
    return found


@contextmanager
def timed_native_calls(backend: Backend, timer: OperatorTimer) -> Iterator[None]:
    """Also time the calls of the native library. They are not torch operators, so the dispatch mode misses them."""

    def add(seconds: float) -> None:
        timer.seconds["native.linear"] += seconds

    parts = (backend.talker, backend.code_predictor, backend.decoder)
    callers = [each for part in parts for each in part.modules() if is_dataclass(getattr(each, "library", None))]
    libraries = [each.library for each in callers]
    try:
        for each, library in zip(callers, libraries, strict=True):
            setattr(each, "library", _timed_library(library, add))  # noqa: B010
        yield
    finally:
        for each, library in zip(callers, libraries, strict=True):
            setattr(each, "library", library)  # noqa: B010


def _timed_library(library: object, add: Callable[[float], None]) -> object:
    """A copy of the library whose functions report their seconds to `add`."""
    assert is_dataclass(library)
    assert not isinstance(library, type)
    parts = {field.name: getattr(library, field.name) for field in fields(library)}
    return replace(library, **{name: _timed_call(part, add) for name, part in parts.items() if callable(part)})


def _timed_call(function: Callable[..., object], add: Callable[[float], None]) -> Callable[..., object]:
    def call(*arguments: object) -> object:
        started = time.perf_counter()
        result = function(*arguments)
        add(time.perf_counter() - started)
        return result

    return call


def _timed_by_class(backend: Backend, compute: Callable[[], object]) -> dict[str, float]:
    """Seconds by class of the operators and native calls of `compute`."""
    with OperatorTimer() as timer, timed_native_calls(backend, timer):
        compute()
    return by_class(timer.seconds)


def _fastest(runs: list[dict[str, float]]) -> dict[str, float]:
    return min(runs, key=lambda each: sum(each.values()))
