"""Frame budget per text, and the watchdog that stops loops and silence but not pauses."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from legato.errors import NonFiniteError
from legato.text.budget import BASE_FRAMES, Watchdog, WatchdogRule, frame_budget
from legato.types import FinishReason, Frame

FRAME_S = 0.08


@pytest.mark.parametrize("text", ["1次", "6", "A", "嗯", "2."])
def test_budget_of_tiny_texts_is_below_four_seconds(text: str) -> None:
    """CASES R23."""
    assert 1.0 < frame_budget(text) * FRAME_S < 4.0


def test_budget_fits_slow_chinese() -> None:
    """CASES R25: 159 Chinese characters need up to 576 frames."""
    assert frame_budget("我" * 159) >= 576


@pytest.mark.parametrize(
    ("text", "seconds"),
    [  # duration of a slow human reading
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
def test_budget_fits_slow_reading_with_bounded_excess(text: str, seconds: float) -> None:
    assert seconds < frame_budget(text) * FRAME_S < 3 * seconds + 3


@settings(max_examples=60, deadline=None)
@given(left=st.text(max_size=40), right=st.text(max_size=40))
def test_budget_is_additive_over_characters(left: str, right: str) -> None:
    assert frame_budget(left + right) == frame_budget(left) + frame_budget(right) - BASE_FRAMES


def watch_frames(frames: Sequence[Frame], watchdog: Watchdog | None = None) -> list[tuple[int, FinishReason]]:
    watchdog = watchdog or Watchdog()
    reasons = [watchdog.observe_frame(frame) for frame in frames]
    return [(i, reason) for i, reason in enumerate(reasons) if reason is not None]


def watch_levels(levels: list[float]) -> list[tuple[int, FinishReason]]:
    watchdog = Watchdog()
    reasons = [watchdog.observe_level(level) for level in levels]
    return [(i, reason) for i, reason in enumerate(reasons) if reason is not None]


def speech(count: int, seed: int = 1) -> list[Frame]:
    rng = random.Random(seed)
    return [tuple(rng.randrange(2048) for _ in range(16)) for _ in range(count)]


@pytest.mark.parametrize("period", [1, 2, 7, 40, 75])
def test_watchdog_detects_frame_loop(period: int) -> None:
    """CASES R21, R26: a model that never stops and repeats itself."""
    lead, rule = speech(30), WatchdogRule()
    found = watch_frames(lead + speech(period, seed=2) * 60)
    index, reason = found[0]
    assert reason is FinishReason.REPEAT
    assert index == 30 + period + max(rule.repeat_frames, rule.repeat_rounds * period) - 1


def test_watchdog_detects_constant_first_codebook() -> None:
    frames = [(7, *frame[1:]) for frame in speech(200)]
    assert watch_frames(frames)[0] == (WatchdogRule().stuck_frames - 1, FinishReason.REPEAT)


def test_watchdog_accepts_pauses_and_refrains() -> None:
    pause = [(5,) * 16] * 25  # two seconds of one frame
    refrain = speech(20, seed=3)
    assert watch_frames(speech(400) + pause + speech(100, seed=2) + refrain + refrain + speech(50, seed=4)) == []
    assert watch_frames(refrain * 2 + speech(5) + refrain * 2) == []


def test_watchdog_detects_silence_but_not_pauses() -> None:
    """CASES R21: room tone after the sentence, 40 dB below the speech and well above digital silence."""
    loud, room = [0.1] * 50, [0.001, 0.0015] * 12
    assert watch_levels(loud + room + loud + room[:20] + loud) == []
    assert watch_levels(loud + room * 4) == [(50 + WatchdogRule().silent_frames - 1, FinishReason.SILENCE)]


def test_watchdog_accepts_quiet_voice_but_not_digital_silence() -> None:
    assert watch_levels([0.004, 0.003] * 100) == []
    assert watch_levels([0.0] * 60)[0][1] is FinishReason.SILENCE


def test_watchdog_resets_after_detection() -> None:
    watchdog = Watchdog()
    for _ in range(50):
        found = watchdog.observe_level(0.0)
    assert found is FinishReason.SILENCE
    assert watchdog.observe_level(0.0) is None
    looped = [(1,) * 16] * 45
    assert len(watch_frames(looped + looped[:20], watchdog)) == 1


@pytest.mark.parametrize("level", [float("nan"), float("inf"), -1.0])
def test_non_finite_or_negative_level_raises(level: float) -> None:
    with pytest.raises(NonFiniteError):
        Watchdog().observe_level(level)
