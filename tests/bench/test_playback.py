"""Simulated playback: examples, and random pieces compared with a sample-by-sample reference."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from legato.bench.playback import AudioPiece, leading_silence_samples, simulate_playback

RATE_HZ = 1000
LOUD = 5000


def pieces(*sent: tuple[float, int], silent: int = 0) -> list[AudioPiece]:
    """Pieces of one signal with `silent` leading samples. `sent`: arrival time and length of each piece."""
    whole = np.full(sum(count for _, count in sent), LOUD, np.int16)
    whole[:silent] = 0
    ends = np.cumsum([count for _, count in sent])
    return [(at_s, whole[end - count : end]) for (at_s, count), end in zip(sent, ends, strict=True)]


def test_playback_starts_on_arrival_and_is_audible_after_the_silence() -> None:
    got = simulate_playback(pieces((2.0, 100), (2.05, 100), silent=120), RATE_HZ)
    assert (got.start_s, got.underruns) == (2.0, 0)
    assert got.silence_s == pytest.approx(0.12)
    assert got.audible_s == pytest.approx(2.12)


def test_late_piece_is_an_underrun() -> None:
    got = simulate_playback(pieces((2.0, 100), (2.5, 100), silent=120), RATE_HZ)
    assert got.underruns == 1
    assert got.underrun_s == pytest.approx(0.4)
    assert got.audible_s == pytest.approx(2.52)


def test_buffering_delays_the_start_and_avoids_the_underrun() -> None:
    got = simulate_playback(pieces((2.0, 100), (2.15, 100), (2.3, 100)), RATE_HZ, prebuffer_ms=150)
    assert (got.start_s, got.audible_s, got.underruns) == (2.15, 2.15, 0)
    assert simulate_playback(pieces((2.0, 100), (2.15, 100)), RATE_HZ, prebuffer_ms=5000).start_s == 2.15


def test_inaudible_audio_is_silence_to_its_end() -> None:
    got = simulate_playback(pieces((1.0, 100), silent=100), RATE_HZ)
    assert got.silence_s == pytest.approx(0.1)
    assert got.audible_s == pytest.approx(1.1)


def test_silence_ends_with_the_first_loud_window() -> None:
    samples = np.zeros(1000, np.int16)
    samples[437:] = 66
    assert leading_silence_samples(samples, RATE_HZ) == 440, "three loud samples in a window of ten are not enough"
    samples[437:] = 60
    assert leading_silence_samples(samples, RATE_HZ) == 1000


@given(
    st.lists(st.tuples(st.floats(0.0, 0.3), st.integers(1, 300)), min_size=1, max_size=12),
    st.integers(0, 400),
    st.sampled_from([0.0, 50.0, 200.0]),
)
def test_playback_matches_the_sample_by_sample_reference(
    sent: list[tuple[float, int]], silent: int, prebuffer_ms: float
) -> None:
    arrivals = np.cumsum([gap for gap, _ in sent])
    piece_arrivals = [(float(at_s), count) for at_s, (_, count) in zip(arrivals, sent, strict=True)]
    got = simulate_playback(pieces(*piece_arrivals, silent=silent), RATE_HZ, prebuffer_ms=prebuffer_ms)
    plays_s, underrun_s = list[float](), 0.0
    for at_s, count in piece_arrivals:
        for _ in range(count):
            now_s = max(at_s, got.start_s, plays_s[-1] + 1 / RATE_HZ if plays_s else 0.0)
            underrun_s += max(0.0, now_s - plays_s[-1] - 1 / RATE_HZ) if plays_s else 0.0
            plays_s.append(now_s)
    silent_samples = leading_silence_samples(
        np.concatenate([samples for _, samples in pieces(*piece_arrivals, silent=silent)]), RATE_HZ
    )
    expected = plays_s[silent_samples] if silent_samples < len(plays_s) else plays_s[-1] + 1 / RATE_HZ
    assert got.start_s == plays_s[0]
    assert got.audible_s == pytest.approx(expected, abs=1e-6)
    assert got.underrun_s == pytest.approx(underrun_s, abs=1e-6)
