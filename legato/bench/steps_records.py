"""What `legato bench steps` measured, as values: steps, where a turn goes, the limits. Owns and measures nothing."""

from __future__ import annotations

from dataclasses import dataclass

from legato.bench.ceilings import Ceilings
from legato.bench.facts import Machine, ModelFacts

DRAWS = "draws"


@dataclass(frozen=True, slots=True)
class Step:
    """One part at one size. `part`: talker, code predictor, codec, or draws (which are inside the other two as well).

    Times are of one call for all `rows`. The limits are what its bytes and its products would take at the machine's
    ceilings; 0 where there is nothing to count.
    """

    part: str
    rows: int
    window_frames: int
    context_positions: int
    repetitions: int
    median_ms: float
    p10_ms: float
    p90_ms: float
    weight_bytes: int
    state_bytes: int
    flops: int
    memory_limit_ms: float
    arithmetic_limit_ms: float

    @property
    def limit_ms(self) -> float:
        """What it must take at least."""
        return max(self.memory_limit_ms, self.arithmetic_limit_ms)

    @property
    def frames_s(self) -> float:
        """Frames a second, all rows together."""
        return 1000 * self.rows * self.window_frames / self.median_ms


@dataclass(frozen=True, slots=True)
class Overhead:
    """One turn of the engine, a frame of each of `rows` streams: milliseconds by what they went to.

    `products_ms` and `arithmetic_ms` are kernels of the models. The rest is what the machine does besides: `copies_ms`
    moves numbers, `draws_ms` draws codes, `host_ms` is Python, dispatch of operators and scheduling.
    """

    rows: int
    turns: int
    turn_ms: float
    products_ms: float
    arithmetic_ms: float
    copies_ms: float
    draws_ms: float
    host_ms: float

    @property
    def share(self) -> float:
        """The part of a turn that is outside the kernels."""
        return (self.copies_ms + self.draws_ms + self.host_ms) / self.turn_ms


@dataclass(frozen=True, slots=True)
class CeilingsRecord:
    """What the machine could do when the steps were measured."""

    machine: Machine
    ceilings: Ceilings


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One step of one model."""

    machine: Machine
    model: ModelFacts
    step: Step


@dataclass(frozen=True, slots=True)
class TurnRecord:
    """One turn of the engine with one model."""

    machine: Machine
    model: ModelFacts
    turn: Overhead
