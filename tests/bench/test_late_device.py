"""A device that is late: work is done 200 ms after it was handed over, and only who waits for it sees that.

With the engine told to wait, the stage that computed has the time. Without, the host's clock alone says that computing
took nothing, and the next stage that needs a number on the host pays for it: figures that look right and are not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import pytest

from legato.bench.records import ALL_STAGES
from legato.engine.decode import CodecStage, Window
from legato.engine.kv_pool import KVPool
from legato.engine.loop import Loop, Machinery
from legato.engine.sequence import Sequence as TalkerSequence
from legato.engine.stats import Mark, PoolUse
from legato.errors import GenerationError
from legato.flow import FinishReason
from tests.engine.harness import Harness, ScriptedRunner
from tests.engine.tiny import tiny_decoder
from tests.models.tiny_talker import CODEBOOKS

LATE_S = 0.2
FRAME = (1,) * CODEBOOKS


class LateDevice:
    """A queue of work and a clock: handing over takes no time, waiting takes what is left."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._done_s = 0.0

    def queue(self, seconds: float) -> None:
        self._done_s = max(self.now_s, self._done_s) + seconds

    def wait(self) -> None:
        self.now_s = max(self.now_s, self._done_s)


class LateRunner(ScriptedRunner):
    """Prefill and steps are queued; a code is a number on the host, so drawing one waits."""

    def __init__(self, pool: KVPool, device: LateDevice) -> None:
        super().__init__(pool, lambda _seed, frame: FRAME if frame < 5 else FinishReason.EOS)
        self._late = device

    def prefill(self, slices: Sequence[tuple[TalkerSequence, int, int]]) -> list[TalkerSequence]:
        self._late.queue(LATE_S if slices else 0.0)
        return super().prefill(slices)

    def draw_first_codes(self, sequences: Sequence[TalkerSequence]) -> list[int | FinishReason | GenerationError]:
        self._late.wait()
        return super().draw_first_codes(sequences)


class LateCodec(CodecStage):
    """Samples are on the host when they are returned, whoever waited before."""

    def __init__(self, harness: Harness, device: LateDevice) -> None:
        super().__init__(tiny_decoder(), harness.codec, rows_per_call=64)
        self._late = device

    def decode(self, windows: Sequence[Window]) -> list[npt.NDArray[np.float32]]:
        self._late.queue(LATE_S)
        samples = super().decode(windows)
        self._late.wait()
        return samples


def spoken(settle: Callable[[LateDevice], Callable[[], None]]) -> Harness:
    """One stream, spoken to its end on a late device."""
    device = LateDevice()
    harness = Harness(lambda _seed, _frame: FRAME)
    machinery = Machinery(
        LateRunner(harness.kv, device),
        LateCodec(harness, device),
        lambda: device.now_s,
        (64, 64),
        24000,
        settle=settle(device),
    )
    harness.runner, harness.stage = machinery.runner, machinery.codec
    harness.roster = type(harness.roster)(machinery.runner, harness.codec, 24000)
    harness.loop = Loop(machinery, harness.roster)
    harness.submit("hello", packets=(4,))
    harness.run()
    return harness


def test_waiting_gives_each_stage_its_own_time() -> None:
    stages_s = spoken(lambda device: device.wait).streams[0].timing.stages_s()
    assert stages_s["prefill"] == pytest.approx(LATE_S)
    assert stages_s["first code"] == pytest.approx(0.0)
    assert stages_s["codec"] == pytest.approx(LATE_S)


def test_the_host_clock_alone_would_have_lied_about_the_stages() -> None:
    stages_s = spoken(lambda _device: lambda: None).streams[0].timing.stages_s()
    assert stages_s["prefill"] == pytest.approx(0.0), "200 ms of work that the host's clock did not see"
    assert stages_s["first code"] == pytest.approx(LATE_S), "and blamed on the stage that waited"


def test_the_first_packet_holds_the_late_work_whoever_waits() -> None:
    for settle in (lambda device: device.wait, lambda _device: lambda: None):
        harness = spoken(settle)
        timing = harness.streams[0].timing
        assert timing.first_packet_s == pytest.approx(2 * LATE_S)
        assert sum(timing.stages_s().values()) == pytest.approx(timing.first_packet_s)
        assert timing.marks[Mark.FIRST_PACKET] == pytest.approx(timing.packet_s[0])
        assert set(timing.stages_s()) < set(ALL_STAGES)


def test_seconds_of_a_part_are_counted_to_the_end_of_its_work() -> None:
    found = []
    for settle in (lambda device: device.wait, lambda _device: lambda: None):
        stats, none = spoken(settle).roster.stats, PoolUse(0, 0)
        found.append(stats.snapshot(streams_open=0, talker_slots=none, codec_slots=none).busy_s["prefill"].total)
    assert found == pytest.approx([LATE_S, 0.0])
