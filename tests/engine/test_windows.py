"""Windows that grow for a stream that is alone and far ahead: the same packets, the same sound, and nobody waits."""

from __future__ import annotations

import numpy as np
import pytest

from legato.engine import emission
from legato.engine.decode import Window
from legato.engine.demand import BACKGROUND, paced
from legato.engine.framing import WIDE_FRAMES
from legato.engine.stats import StreamTiming
from tests.engine.harness import Harness
from tests.engine.test_demand import FRAME_S
from tests.engine.test_loop import harness

PLENTY_S = 0.05


def windows_of(h: Harness) -> list[list[int]]:
    """From now on, the frames of each window of each codec call."""
    calls: list[list[int]] = []
    decode = h.stage.decode

    def noted(windows: list[Window]) -> object:
        calls.append([len(window.frames) for window in windows])
        return decode(windows)

    h.stage.decode = noted  # type: ignore[method-assign,assignment]
    return calls


PLENTY_S = 0.05


def test_windows_grow_once_playback_is_far_ahead_and_packets_stay_what_was_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(emission, "EASY_S", PLENTY_S)
    cut, calls, sound = {}, {}, {}
    for adaptive in (False, True):
        h = harness({0: 200}, tick_s=FRAME_S / 4, adaptive=adaptive)
        calls[adaptive] = windows_of(h)
        _, heard = h.submit("a text that lasts for a good while " * 3)
        h.run()
        cut[adaptive] = [packet.frames for packet in heard.packets]
        sound[adaptive] = heard.samples
        assert h.streams[0].timing.underruns == 0
    assert cut[True] == cut[False]
    np.testing.assert_allclose(sound[True], sound[False], atol=2e-5)
    assert {max(each) for each in calls[False][2:-1]} == {4}
    sizes = [each[0] for each in calls[True]]
    grown = sizes.index(WIDE_FRAMES)
    assert sum(sizes[:grown]) * FRAME_S > PLENTY_S  # not before so much is in hand
    assert set(sizes[:grown]) == {1, 2, 4}
    assert sizes[grown:-1].count(WIDE_FRAMES) > len(sizes[grown:-1]) / 2


def test_windows_are_small_again_while_anybody_else_is_there() -> None:
    h = harness({0: 150, 1: 20}, tick_s=FRAME_S, adaptive=True)
    _, background = h.submit("a text that lasts for a good while " * 3, demand=BACKGROUND)
    calls = windows_of(h)
    for _ in range(40):
        h.turn()
    assert calls[-1] == [WIDE_FRAMES]  # nobody else is there, and nobody listens live
    calls.clear()
    _, live = h.submit("a text that is long enough", seed=1)
    while not (live.packets and live.packets[-1].last):
        h.turn()
    assert max(map(max, calls)) <= 4
    h.run()
    assert background.frames == 150
    h.assert_balanced()


@pytest.mark.parametrize("ahead", [1, 3, 7, 12, 30])
def test_a_listener_who_takes_his_time_gets_everything_though_windows_wait(
    monkeypatch: pytest.MonkeyPatch, ahead: int
) -> None:
    """What could go wrong: the engine sleeps with frames in hand, waiting for a wide window that never fills."""
    h = harness({0: 120}, tick_s=FRAME_S / 100, adaptive=True)
    stream, heard = h.submit("a text that is long enough for it " * 2, demand=paced(ahead))
    monkeypatch.setattr(StreamTiming, "slack_s", lambda _timing, _now_s: 100.0)
    for _ in range(200):
        h.run()
        h.taken(stream, heard.frames)
    assert heard.frames == 120
    h.assert_balanced()
