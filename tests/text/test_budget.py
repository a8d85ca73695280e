"""The frame budget bounds what a text may take, and the watchdog ends what has gone astray but no pause."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from legato.errors import NonFiniteError
from legato.flow import FinishReason, Frame
from legato.text.budget import BASE_FRAMES, Watchdog, WatchdogRule, frame_budget

FRAME_S = 0.08


@pytest.mark.parametrize("text", ["1次", "6", "A", "嗯", "2."])
def test_tiny_texts_are_bounded_to_four_seconds(text: str) -> None:
    """CASES R23."""
    assert 1.0 < frame_budget(text) * FRAME_S < 4.0


def test_slow_chinese_is_not_cut() -> None:
    """CASES R25: 159 Chinese characters need up to 576 frames."""
    assert frame_budget("我" * 159) >= 576


@pytest.mark.parametrize(
    ("text", "seconds"),
    [  # a slow reading by a person
        ("Hello.", 1.2),
        ("The quick brown fox jumps over the lazy dog.", 4.5),
        ("100", 1.5),
        ("1,234,567", 6.0),
        ("25 Dec. 1999, 10:30 a.m.", 5.5),
        ("IBM, NASA and the BBC", 4.0),
        ("私は昨日友達と映画を見ました。", 5.0),
        ("안녕하세요, 만나서 반갑습니다.", 4.5),
        ("50% & more", 2.5),
    ],
)
def test_slow_readings_fit_and_babble_does_not(text: str, seconds: float) -> None:
    assert seconds < frame_budget(text) * FRAME_S < 3 * seconds + 3


@settings(max_examples=60, deadline=None)
@given(left=st.text(max_size=40), right=st.text(max_size=40))
def test_the_budget_is_a_sum_over_characters(left: str, right: str) -> None:
    assert frame_budget(left + right) == frame_budget(left) + frame_budget(right) - BASE_FRAMES


def watch_frames(frames: Sequence[Frame], watchdog: Watchdog | None = None) -> list[tuple[int, FinishReason]]:
    watchdog = watchdog or Watchdog()
    return [(i, reason) for i, frame in enumerate(frames) for reason in watchdog.observe_frame(frame)]


def watch_levels(levels: list[float]) -> list[tuple[int, FinishReason]]:
    watchdog = Watchdog()
    return [(i, reason) for i, level in enumerate(levels) for reason in watchdog.observe_level(level)]


def speech(count: int, seed: int = 1) -> list[Frame]:
    draw = random.Random(seed)
    return [tuple(draw.randrange(2048) for _ in range(16)) for _ in range(count)]


@pytest.mark.parametrize("period", [1, 2, 7, 40, 75])
def test_a_loop_of_frames_is_ended(period: int) -> None:
    """CASES R21, R26: a model that never stops and repeats itself."""
    lead, rule = speech(30), WatchdogRule()
    found = watch_frames(lead + speech(period, seed=2) * 60)
    index, reason = found[0]
    assert reason is FinishReason.REPEAT
    assert index == 30 + period + max(rule.repeat_frames, rule.repeat_rounds * period) - 1


def test_a_stuck_first_codebook_is_ended() -> None:
    frames = [(7, *frame[1:]) for frame in speech(200)]
    assert watch_frames(frames)[0] == (WatchdogRule().stuck_frames - 1, FinishReason.REPEAT)


def test_speech_pauses_and_refrains_are_left_alone() -> None:
    pause = [(5,) * 16] * 25  # two seconds of the very same frame
    refrain = speech(20, seed=3)
    assert watch_frames(speech(400) + pause + speech(100, seed=2) + refrain + refrain + speech(50, seed=4)) == []
    assert watch_frames(refrain * 2 + speech(5) + refrain * 2) == []


def test_silence_is_ended_and_a_pause_is_not() -> None:
    """CASES R21: room tone after the sentence, at 40 dB under the speech and well above digital silence."""
    loud, room = [0.1] * 50, [0.001, 0.0015] * 12
    assert watch_levels(loud + room + loud + room[:20] + loud) == []
    assert watch_levels(loud + room * 4) == [(50 + WatchdogRule().silent_frames - 1, FinishReason.SILENCE)]


def test_a_quiet_voice_is_not_silence_but_nothing_at_all_is() -> None:
    assert watch_levels([0.004, 0.003] * 100) == []
    assert watch_levels([0.0] * 60)[0][1] is FinishReason.SILENCE


def test_it_starts_afresh_after_a_finding() -> None:
    watchdog = Watchdog()
    for _ in range(50):
        found = watchdog.observe_level(0.0)
    assert found == [FinishReason.SILENCE]
    assert watchdog.observe_level(0.0) == []
    looped = [(1,) * 16] * 45
    assert len(watch_frames(looped + looped[:20], watchdog)) == 1


@pytest.mark.parametrize("level", [float("nan"), float("inf"), -1.0])
def test_levels_that_are_no_numbers_are_errors(level: float) -> None:
    with pytest.raises(NonFiniteError):
        Watchdog().observe_level(level)
