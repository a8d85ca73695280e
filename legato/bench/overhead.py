"""Where the time of an engine's turn goes: kernels of the models, and everything that is not a kernel.

Owns its loops for one measurement: one as it is, which tells the time, and one in which every operator is timed, which
tells what the kernels have of it. On the CPU alone, where an operator returns when its kernel has ended.
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

from legato.bench.chorus import Chorus
from legato.bench.steps import draws, repeated
from legato.bench.steps_records import Overhead
from legato.config.engine import EngineConfig
from legato.engine.assembly import assemble
from legato.engine.framing import WIDE_FRAMES
from legato.engine.frontend import FrontEnd
from legato.engine.stream import StreamRequest
from legato.errors import StateError
from legato.models.load import LoadedModel

WARM_UP = 4
TURNS = WIDE_FRAMES
"""Timed together: so many frames at most the codec takes at once. The fastest of `GROUPS` counts."""
GROUPS = 6
"""With and without a clock on every operator, in turn: both see the machine's quiet moments and its busy ones."""
CLASSES = ("products", "arithmetic", "copies")
POSITIONS = 256
DRAWS_S = 0.2

PRODUCTS = re.compile(r"mm|linear|conv|matmul|attention|int4|int8|quantized|onednn|mkldnn")
COPIES = re.compile(
    r"\.(copy_|clone|contiguous|_?reshape\w*|cat|stack|to|_to_copy|index\w*|gather|scatter\w*|fill_|zero_|zeros\w*"
    r"|ones\w*|full\w*|masked_fill\w*|embedding|constant_pad_nd|pad|repeat\w*|item|_local_scalar_dense|lift_fresh)$"
)
VIEWS = re.compile(
    r"\.(view\w*|_unsafe_view|t|transpose\w*|slice|select|narrow|expand\w*|unsqueeze|squeeze|as_strided\w*"
    r"|permute|unbind|split\w*|chunk|unflatten|flatten|alias|detach_?|empty\w*|new_\w+|resolve_\w+|resize_|result_type)$"
)

Seconds = defaultdict[str, float]


def measure_overhead(model: LoadedModel, front_end: FrontEnd, request: StreamRequest, streams: int) -> Overhead:
    """Shares of a turn in which each of `streams` streams makes a frame."""
    chorus = _begun(model, front_end, request, streams)
    plain, clocked = [], []
    for _ in range(GROUPS):
        plain.append(_spoken_s(chorus, streams))
        clocked.append(_clocked(model, lambda: _spoken_s(chorus, streams)))
    turn_s, turns = min(plain) / TURNS, _fastest(clocked)
    chorus.stop()
    draw_all = draws(model, streams)
    with torch.inference_mode():
        draws_s = statistics.median(repeated(draw_all, lambda: None, DRAWS_S))
        drawing = _fastest([_clocked(model, lambda: [draw_all() for _ in range(TURNS)]) for _ in range(GROUPS)])
    products_s, arithmetic_s, copies_s = (max(0.0, turns[name] - drawing[name]) / TURNS for name in CLASSES)
    return Overhead(
        rows=streams,
        turns=GROUPS * TURNS,
        turn_ms=1000 * turn_s,
        products_ms=1000 * products_s,
        arithmetic_ms=1000 * arithmetic_s,
        copies_ms=1000 * copies_s,
        draws_ms=1000 * draws_s,
        host_ms=1000 * max(0.0, turn_s - products_s - arithmetic_s - copies_s - draws_s),
    )


def _begun(model: LoadedModel, front_end: FrontEnd, request: StreamRequest, streams: int) -> Chorus:
    """Streams that are in the middle of their speech."""
    works = assemble(model, EngineConfig(streams=streams, kv_slots=streams, positions=POSITIONS), time.perf_counter)
    chorus = Chorus(works, front_end, request, streams=streams, frames=WARM_UP + (2 * GROUPS + 1) * TURNS)
    for _ in range(WARM_UP):
        chorus.turn()
    return chorus


def _spoken_s(chorus: Chorus, streams: int) -> float:
    """Seconds of `TURNS` turns. `StateError` if not every stream made a frame in each."""
    before, began = chorus.frames_drawn, time.perf_counter()
    for _ in range(TURNS):
        chorus.turn()
    took = time.perf_counter() - began
    if chorus.frames_drawn - before != streams * TURNS:
        raise StateError(f"{streams} streams made {chorus.frames_drawn - before} frames in {TURNS} turns")
    return took


class OperatorClock(TorchDispatchMode):
    """Adds up the seconds of each operator that runs while it is entered."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seconds: Seconds = defaultdict(float)

    def __torch_dispatch__(
        self, func: OpOverload, types: object, args: tuple[object, ...] = (), kwargs: dict[str, object] | None = None
    ) -> object:
        began = time.perf_counter()
        result: object = func(*args, **(kwargs or {}))
        self.seconds[str(func).rpartition(".")[0]] += time.perf_counter() - began
        return result


def by_class(operators: Mapping[str, float]) -> dict[str, float]:
    """Seconds of operators by what they do, for each of `CLASSES`; those that only look elsewhere are left out."""
    found = dict.fromkeys(CLASSES, 0.0)
    for name, seconds in operators.items():
        if PRODUCTS.search(name):
            found["products"] += seconds
        elif COPIES.search(name):
            found["copies"] += seconds
        elif not VIEWS.search(name):
            found["arithmetic"] += seconds
    return found


@contextmanager
def compiled_calls(model: LoadedModel, clock: OperatorClock) -> Iterator[None]:
    """What is compiled from our own source is no operator of torch: its calls tell the clock themselves."""

    def told(seconds: float) -> None:
        clock.seconds["compiled.linear"] += seconds

    parts = (model.talker, model.code_predictor, model.decoder)
    calling = [each for part in parts for each in part.modules() if is_dataclass(getattr(each, "library", None))]
    libraries = [each.library for each in calling]
    try:
        for each, library in zip(calling, libraries, strict=True):
            setattr(each, "library", _timed(library, told))  # noqa: B010
        yield
    finally:
        for each, library in zip(calling, libraries, strict=True):
            setattr(each, "library", library)  # noqa: B010


def _timed(library: object, told: Callable[[float], None]) -> object:
    """A library of compiled functions of which each call tells its seconds."""
    assert is_dataclass(library)
    assert not isinstance(library, type)
    parts = {field.name: getattr(library, field.name) for field in fields(library)}
    return replace(library, **{name: _timed_call(part, told) for name, part in parts.items() if callable(part)})


def _timed_call(function: Callable[..., object], told: Callable[[float], None]) -> Callable[..., object]:
    def call(*arguments: object) -> object:
        began = time.perf_counter()
        result = function(*arguments)
        told(time.perf_counter() - began)
        return result

    return call


def _clocked(model: LoadedModel, compute: Callable[[], object]) -> dict[str, float]:
    """Seconds by class of what `compute` calls."""
    with OperatorClock() as clock, compiled_calls(model, clock):
        compute()
    return by_class(clock.seconds)


def _fastest(runs: list[dict[str, float]]) -> dict[str, float]:
    return min(runs, key=lambda each: sum(each.values()))
