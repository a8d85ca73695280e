"""Engine context: the runners, clock and limits used by every phase of an engine step.

Created with the engine and immutable. It holds no per-stream state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

from legato.engine.codec_runner import CodecRunner
from legato.engine.model_runner import ModelRunner
from legato.engine.stats import EngineStats, StepPhase
from legato.engine.stream import Command

_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class EngineContext:
    """Runners, a monotonic clock in seconds, and the limits of a step.

    `prefill_limits`: maximum prompt positions per step, and the smaller maximum while a live stream may underrun.
    `frame_audio_s`: audio of one frame in seconds. `max_batch_size`: maximum number of sequences that step together.
    `yield_s`, `parked_bytes`: see `EngineConfig`.
    `adaptive`: adapt window sizes to the playback buffers. `poll_commands`: returns the commands that arrived since the
    step began. `synchronize`: waits for the device, so that the duration of each phase can be measured.
    `needs_torch_threads`: see `Backend`.
    """

    runner: ModelRunner
    codec: CodecRunner
    clock: Callable[[], float]
    prefill_limits: tuple[int, int]
    sample_rate_hz: int
    frame_audio_s: float
    max_batch_size: int = 64
    yield_s: float = 1.0
    parked_bytes: int = 2**30
    adaptive: bool = False
    poll_commands: Callable[[], Iterable[Command]] = tuple
    synchronize: Callable[[], None] = lambda: None
    needs_torch_threads: bool = True

    def timed(self, stats: EngineStats, phase: StepPhase, rows: int, compute: Callable[[], _Result]) -> _Result:
        """Run `compute`, record its batch size and duration, and return its result."""
        start_s = self.clock()
        result = compute()
        if rows:
            self.synchronize()
        stats.add_compute(phase, rows, self.clock() - start_s)
        return result
