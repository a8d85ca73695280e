"""Workloads are the same on every run: texts, seeds, arrivals, text pieces."""

from __future__ import annotations

import io
import wave

import pytest
from hypothesis import given
from hypothesis import strategies as st

from legato.bench.workload import TEXTS, Workload, arrival_times_s, reference_tone, text_at_rate


@given(st.text(max_size=200), st.floats(0.5, 200.0))
def test_text_pieces_arrive_at_the_given_rate(text: str, tokens_per_s: float) -> None:
    pieces = text_at_rate(text, tokens_per_s)
    assert "".join(piece for _, piece in pieces) == text
    assert all(len(piece) == 4 for _, piece in pieces[:-1])
    assert [at_s for at_s, _ in pieces] == pytest.approx([number / tokens_per_s for number in range(len(pieces))])


@given(st.floats(0.1, 50.0), st.integers(1, 40), st.integers(0, 9))
def test_arrivals_are_reproducible_and_in_order(rate_hz: float, count: int, seed: int) -> None:
    times_s = arrival_times_s(rate_hz, count, seed)
    assert times_s == arrival_times_s(rate_hz, count, seed)
    assert (len(times_s), times_s[0]) == (count, 0.0)
    assert times_s == sorted(times_s)
    assert times_s == pytest.approx([at_s / rate_hz for at_s in arrival_times_s(1.0, count, seed)])


def test_arrivals_have_the_given_mean_rate() -> None:
    assert arrival_times_s(5.0, 4001, seed=1)[-1] == pytest.approx(800.0, rel=0.05)
    assert arrival_times_s(5.0, 10, seed=1) != arrival_times_s(5.0, 10, seed=2)


def test_request_number_determines_text_and_seed() -> None:
    workload = Workload(seed=7, max_frames=9)
    again = [workload.utterance(number) for number in range(8)]
    assert [each.text for each in again] == [*TEXTS, TEXTS[0], TEXTS[1]]
    assert [each.seed for each in again] == list(range(7, 15))
    assert {each.max_frames for each in again} == {9}


def test_reference_tone_is_a_wav_file() -> None:
    with wave.open(io.BytesIO(reference_tone(seconds=1.5))) as file:
        assert (file.getnchannels(), file.getframerate(), file.getnframes()) == (1, 24_000, 36_000)
