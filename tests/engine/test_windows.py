"""Wide decode windows for a single stream that is far ahead: same packets, same audio, no delay for others."""

from __future__ import annotations

import numpy as np
import pytest

from legato.engine import output
from legato.engine.codec_runner import Window
from legato.engine.flow_control import BACKGROUND, paced
from legato.engine.packetizer import WIDE_FRAMES
from legato.engine.stats import StreamTiming
from tests.engine.harness import Harness
from tests.engine.test_core import harness
from tests.engine.test_flow_control import FRAME_S


def windows_of(h: Harness) -> list[list[int]]:
    """Record the frames of each window of each codec call from now on."""
    calls: list[list[int]] = []
    decode = h.codec_runner.decode

    def noted(windows: list[Window]) -> object:
        calls.append([len(window.frames) for window in windows])
        return decode(windows)

    h.codec_runner.decode = noted  # type: ignore[method-assign,assignment]
    return calls


PLENTY_S = 0.05


def test_windows_grow_when_playback_is_far_ahead_and_packets_stay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(output, "AMPLE_SLACK_S", PLENTY_S)
    cut, calls, sound = {}, {}, {}
    for adaptive in (False, True):
        h = harness({0: 200}, tick_s=FRAME_S / 4, adaptive=adaptive)
        calls[adaptive] = windows_of(h)
        _, received = h.submit("a text that lasts for a good while " * 3)
        h.run()
        cut[adaptive] = [packet.frames for packet in received.packets]
        sound[adaptive] = received.samples
        assert h.streams[0].timing.underruns == 0
    assert cut[True] == cut[False]
    np.testing.assert_allclose(sound[True], sound[False], atol=2e-5)
    assert {max(each) for each in calls[False][2:-1]} == {4}
    sizes = [each[0] for each in calls[True]]
    grown = sizes.index(WIDE_FRAMES)
    assert sum(sizes[:grown]) * FRAME_S > PLENTY_S  # not before this much audio is buffered
    assert set(sizes[:grown]) == {1, 2, 4}
    assert sizes[grown:-1].count(WIDE_FRAMES) > len(sizes[grown:-1]) / 2


def test_windows_are_small_while_another_stream_is_active() -> None:
    h = harness({0: 150, 1: 20}, tick_s=FRAME_S, adaptive=True)
    _, background = h.submit("a text that lasts for a good while " * 3, flow_control=BACKGROUND)
    calls = windows_of(h)
    for _ in range(40):
        h.step()
    assert calls[-1] == [WIDE_FRAMES]  # the only stream, and not live
    calls.clear()
    _, live = h.submit("a text that is long enough", seed=1)
    while not (live.packets and live.packets[-1].last):
        h.step()
    assert max(map(max, calls)) <= 4
    h.run()
    assert background.frames == 150
    h.assert_all_slots_free()


@pytest.mark.parametrize("ahead", [1, 3, 7, 12, 30])
def test_slow_paced_client_gets_all_frames_with_wide_windows(monkeypatch: pytest.MonkeyPatch, ahead: int) -> None:
    """The engine must not sleep with undecoded frames while it waits for a wide window that never fills."""
    h = harness({0: 120}, tick_s=FRAME_S / 100, adaptive=True)
    stream, received = h.submit("a text that is long enough for it " * 2, flow_control=paced(ahead))
    monkeypatch.setattr(StreamTiming, "slack_s", lambda _timing, _now_s: 100.0)
    for _ in range(200):
        h.run()
        h.report_consumed(stream, received.frames)
    assert received.frames == 120
    h.assert_all_slots_free()
