"""What a turn of the engine works with, handed to all who carry one out. Owns nothing beyond what it is given.

It knows no stream: those come and go, these stay from the engine's start to its end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

from legato.engine.commands import Command
from legato.engine.decode import CodecStage
from legato.engine.runner import Runner
from legato.engine.stats import EngineStats, Part

_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class Machinery:
    """What a loop drives: the talker side, the codec side, a monotonic clock in seconds, and its limits.

    `prefill_per_turn`: prompt positions of a turn, at most, and beside a listener who could run dry. `rows`: sequences
    that step in one turn. `adaptive`: windows follow the listeners, short for one who would run dry, wide for one who
    is alone and far ahead. `more`: commands that came since the turn began. `settle`: waits for the device, where
    somebody wants the seconds of each part.
    """

    runner: Runner
    codec: CodecStage
    clock: Callable[[], float]
    prefill_per_turn: tuple[int, int]
    sample_rate_hz: int
    rows: int = 64
    adaptive: bool = False
    more: Callable[[], Iterable[Command]] = tuple
    settle: Callable[[], None] = lambda: None

    def timed(self, stats: EngineStats, part: Part, rows: int, compute: Callable[[], _Result]) -> _Result:
        """`compute()`, counted with its rows and seconds."""
        began_s = self.clock()
        result = compute()
        if rows:
            self.settle()
        stats.computed(part, rows, self.clock() - began_s)
        return result
