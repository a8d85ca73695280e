"""The playback clock: no fraction of a sample is lost, and acknowledgements never go back."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from legato.session.events import AudioPacket, UtteranceId
from legato.session.playback import Playback, PlaybackLimits
from legato.types import FinishReason, Packet, StreamId

FIRST = UtteranceId(0)
FRAME = 1920


def playing(rate_hz: int, frames: int, *, acknowledges: bool = False) -> Playback:
    """A client that has received `frames` frames of a longer utterance at time 0."""
    playback = Playback(PlaybackLimits(sample_rate_hz=rate_hz, frame_samples=FRAME, buffer_ms=600_000), 0.0)
    playback.append_utterance(FIRST)
    playback.append_packet(
        AudioPacket(
            FIRST,
            Packet(
                stream=StreamId(0),
                first_sample=0,
                frames=frames,
                sample_rate_hz=rate_hz,
                float32_le=bytes(4 * FRAME * frames),
                last=acknowledges,
                finish_reason=FinishReason.EOS if acknowledges else None,
            ),
        )
    )
    while playback.next_output() is not None:
        pass
    playback.advance(0.0)
    return playback


@settings(max_examples=50, deadline=None)
@given(
    rate_hz=st.sampled_from([8_000, 16_000, 22_050, 24_000, 44_100, 48_000]),
    steps_ms=st.lists(st.floats(0.001, 3.0), min_size=200, max_size=400),
)
def test_clock_loses_no_fraction_of_a_sample(rate_hz: int, steps_ms: list[float]) -> None:
    """However finely time is cut, the position is the elapsed time in samples, rounded down."""
    playback, now_s = playing(rate_hz, 200), 0.0
    for step_ms in steps_ms:
        now_s += step_ms / 1000
        playback.advance(now_s)
        exact = Fraction(now_s) * rate_hz
        assert abs(playback.find(FIRST).played - math.floor(exact)) <= (exact % 1 < 1e-4 or exact % 1 > 1 - 1e-4)


def test_clock_goes_on_from_an_acknowledgement_with_whole_samples() -> None:
    playback = playing(24_000, 200)
    playback.advance(0.5)
    playback.acknowledge(FIRST, 6_000)  # the client is behind the clock
    assert playback.find(FIRST).played == 6_000
    for step in range(1, 1001):
        playback.advance(0.5 + step * 0.00103)
    assert playback.find(FIRST).played == 6_000 + math.floor(24_000 * 1.03)


@given(st.lists(st.integers(0, 20_000), min_size=2, max_size=12))
def test_acknowledgements_that_overtake_each_other_never_move_the_position_back(samples: list[int]) -> None:
    playback, highest = playing(24_000, 20), 0
    for position in samples:
        playback.acknowledge(FIRST, position)
        highest = max(highest, position)
        assert playback.find(FIRST).played == playback.find(FIRST).acknowledged == highest


@pytest.mark.parametrize("rate_hz", [8_000, 24_000])
def test_clock_stops_at_what_was_sent(rate_hz: int) -> None:
    playback = playing(rate_hz, 3)
    playback.advance(100.0)
    assert playback.find(FIRST).played == 3 * FRAME
