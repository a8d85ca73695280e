"""Stage times on an asynchronous device that finishes work 200 ms after it is queued.

If the engine synchronizes the device, the time is counted in the stage that computes. If it does not, the host clock
assigns it to the next stage that needs a value on the host.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import pytest

from legato.bench.records import ALL_STAGES
from legato.engine.codec_runner import CodecRunner, Window
from legato.engine.core import EngineContext, EngineCore
from legato.engine.kv_cache import KVPool
from legato.engine.sequence import Sequence as TalkerSequence
from legato.engine.stats import Mark, PoolUse
from legato.errors import GenerationError
from legato.types import FinishReason
from tests.engine.harness import Harness, ScriptedRunner
from tests.engine.tiny import tiny_backend
from tests.models.tiny_talker import CODEBOOKS

LATE_S = 0.2
FRAME = (1,) * CODEBOOKS


class LateDevice:
    """A work queue with a clock: queueing takes no time, waiting takes the remaining time."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._done_s = 0.0

    def queue(self, seconds: float) -> None:
        self._done_s = max(self.now_s, self._done_s) + seconds

    def wait(self) -> None:
        self.now_s = max(self.now_s, self._done_s)


class LateRunner(ScriptedRunner):
    """Prefill and steps are queued; sampling waits, because it returns a code on the host."""

    def __init__(self, pool: KVPool, device: LateDevice) -> None:
        super().__init__(pool, lambda _seed, frame: FRAME if frame < 5 else FinishReason.EOS)
        self._late = device

    def prefill(self, slices: Sequence[tuple[TalkerSequence, int, int]]) -> list[TalkerSequence]:
        self._late.queue(LATE_S if slices else 0.0)
        return super().prefill(slices)

    def sample_first_codes(self, sequences: Sequence[TalkerSequence]) -> list[int | FinishReason | GenerationError]:
        self._late.wait()
        return super().sample_first_codes(sequences)


class LateCodec(CodecRunner):
    """Decoding waits, because it returns samples on the host."""

    def __init__(self, harness: Harness, device: LateDevice) -> None:
        super().__init__(tiny_backend(), harness.codec, rows_per_call=64)
        self._late = device

    def decode(self, windows: Sequence[Window]) -> list[npt.NDArray[np.float32]]:
        self._late.queue(LATE_S)
        samples = super().decode(windows)
        self._late.wait()
        return samples


def run_stream(settle: Callable[[LateDevice], Callable[[], None]]) -> Harness:
    """Run one stream to its end on a late device."""
    device = LateDevice()
    harness = Harness(lambda _seed, _frame: FRAME)
    context = EngineContext(
        runner=LateRunner(harness.kv, device),
        codec=LateCodec(harness, device),
        clock=lambda: device.now_s,
        prefill_limits=(64, 64),
        sample_rate_hz=24000,
        frame_audio_s=0.08,
        synchronize=settle(device),
    )
    harness.runner, harness.codec_runner = context.runner, context.codec
    harness.registry = type(harness.registry)(context.runner, harness.codec, 24000)
    harness.core = EngineCore(context, harness.registry)
    harness.submit("hello", packets=(4,))
    harness.run()
    return harness


def test_synchronizing_gives_each_stage_its_own_time() -> None:
    stages_s = run_stream(lambda device: device.wait).streams[0].timing.stages_s()
    assert stages_s["prefill"] == pytest.approx(LATE_S)
    assert stages_s["first code"] == pytest.approx(0.0)
    assert stages_s["codec"] == pytest.approx(LATE_S)


def test_host_clock_without_synchronization_misattributes_stage_times() -> None:
    stages_s = run_stream(lambda _device: lambda: None).streams[0].timing.stages_s()
    assert stages_s["prefill"] == pytest.approx(0.0), "the host clock does not see the queued 200 ms"
    assert stages_s["first code"] == pytest.approx(LATE_S), "they are counted in the stage that waits"


def test_ttfa_includes_queued_work_with_and_without_synchronization() -> None:
    for settle in (lambda device: device.wait, lambda _device: lambda: None):
        harness = run_stream(settle)
        timing = harness.streams[0].timing
        assert timing.first_packet_s == pytest.approx(2 * LATE_S)
        assert sum(timing.stages_s().values()) == pytest.approx(timing.first_packet_s)
        assert timing.marks[Mark.FIRST_PACKET] == pytest.approx(timing.packet_s[0])
        assert set(timing.stages_s()) < set(ALL_STAGES)


def test_busy_seconds_of_a_part_need_synchronization() -> None:
    found = []
    for settle in (lambda device: device.wait, lambda _device: lambda: None):
        stats, unused = run_stream(settle).registry.stats, PoolUse(0, 0)
        found.append(
            stats.snapshot(streams_open=0, streams_parked=0, talker_slots=unused, codec_slots=unused)
            .busy_s["prefill"]
            .total
        )
    assert found == pytest.approx([LATE_S, 0.0])
