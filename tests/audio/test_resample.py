"""Streaming resampler: same samples as resampling at once, exact length, nothing lost at pauses (R51)."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import soxr
from hypothesis import given, settings
from hypothesis import strategies as st

from legato.audio.resample import Resampler
from legato.errors import StateError
from legato.types import FinishReason, Packet, StreamId

RATE_HZ = 24000


def packets(samples: np.ndarray, cuts: list[int], *, late_end: bool = False) -> list[Packet]:
    """Split `samples` at `cuts`; with `late_end` the last packet is empty."""
    edges = [0, *sorted(cut % (len(samples) + 1) for cut in cuts), len(samples), *([len(samples)] if late_end else [])]
    spans = list(itertools.pairwise(edges))
    return [
        Packet(
            StreamId(0),
            start,
            1,
            RATE_HZ,
            samples[start:end].astype("<f4").tobytes(),
            last=number == len(spans) - 1,
            finish_reason=FinishReason.EOS if number == len(spans) - 1 else None,
        )
        for number, (start, end) in enumerate(spans)
    ]


def speech(length: int) -> np.ndarray:
    """Tones with 300 ms pauses."""
    t = np.arange(length) / RATE_HZ
    return (0.5 * np.sin(2 * np.pi * 440 * t) * ((t % 0.6) < 0.3)).astype(np.float32)


@settings(max_examples=30, deadline=None)
@given(
    to_hz=st.sampled_from([8000, 16000, 22050, 44100, 48000]),
    length=st.integers(1, 30_000),
    cuts=st.lists(st.integers(0, 30_000), max_size=8),
    late_end=st.booleans(),
)
def test_any_split_equals_resampling_at_once(to_hz: int, length: int, cuts: list[int], late_end: bool) -> None:
    samples = speech(length)
    resampler = Resampler(RATE_HZ, to_hz)
    out = [resampler.resample(packet) for packet in packets(samples, cuts, late_end=late_end)]
    joined = np.concatenate([packet.float32() for packet in out])
    assert len(joined) == round(length * to_hz / RATE_HZ + 1e-9)
    assert [packet.first_sample for packet in out] == np.cumsum([0, *(p.sample_count for p in out)])[:-1].tolist()
    whole = soxr.resample(samples, RATE_HZ, to_hz, quality="HQ")
    shared = min(len(whole), len(joined))
    assert abs(len(whole) - len(joined)) <= 1
    np.testing.assert_allclose(joined[:shared], whole[:shared], atol=1e-6)


def test_control_without_flush_the_tail_is_missing() -> None:
    samples = speech(12_000)
    resampler = Resampler(RATE_HZ, 16000)
    first = packets(samples, [11_999])[0]
    assert resampler.resample(first).sample_count < 8000 - 100


def test_equal_rates_pass_through_and_wrong_packets_are_errors() -> None:
    only = packets(speech(100), [])[0]
    assert Resampler(RATE_HZ, RATE_HZ).resample(only) is only
    with pytest.raises(StateError, match="expects packets at 16000"):
        Resampler(16000, 8000).resample(only)
    resampler = Resampler(RATE_HZ, 8000)
    resampler.resample(only)
    with pytest.raises(StateError, match="starts at sample 100"):
        resampler.resample(only)
