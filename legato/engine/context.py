"""Engine context: the runners, clock and limits that the parts of an engine step share.

Created once with the engine and never changed. It holds no per-stream state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

from legato.engine.codec_runner import CodecRunner
from legato.engine.model_runner import ModelRunner
from legato.engine.stats import EngineStats, Part
from legato.engine.stream import Command

_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class EngineContext:
    """Runners, a monotonic clock in seconds, and the limits of a step.

    `prefill_limits`: prompt positions per step, and the same while a live stream may underrun. `max_batch_size`:
    sequences that step together. `yield_s`, `parked_bytes`: see `EngineConfig`. `adaptive`: adapt window sizes to the
    playback buffers. `poll_commands`: commands that arrived since the step began. `synchronize`: wait for the device,
    so that the time of each part can be measured. `needs_torch_threads`: see `Backend`.
    """

    runner: ModelRunner
    codec: CodecRunner
    clock: Callable[[], float]
    prefill_limits: tuple[int, int]
    sample_rate_hz: int
    max_batch_size: int = 64
    yield_s: float = 1.0
    parked_bytes: int = 2**30
    adaptive: bool = False
    poll_commands: Callable[[], Iterable[Command]] = tuple
    synchronize: Callable[[], None] = lambda: None
    needs_torch_threads: bool = True

    def timed(self, stats: EngineStats, part: Part, rows: int, compute: Callable[[], _Result]) -> _Result:
        """Return `compute()` and record its rows and duration."""
        start_s = self.clock()
        result = compute()
        if rows:
            self.synchronize()
        stats.add_compute(part, rows, self.clock() - start_s)
        return result
