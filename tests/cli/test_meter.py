"""Figures of `SpeechMeter`, and the lines about the end of a stream."""

from __future__ import annotations

import pytest

from legato.cli.meter import FINISH_REASONS, SpeechMeter, early_stop_warning, finish_line
from legato.types import FinishReason
from tests.audio.packets import speechlike, split_packets


def test_summary_of_known_packets() -> None:
    first, second, *_ = split_packets(speechlike(1.0))
    meter = SpeechMeter(100.0)
    assert meter.summary() == "no audio yet"
    meter.add(first, 100.5)
    assert meter.summary() == "0.1 s of audio in 0.50 s (RTF 6.25), first audio after 500 ms"
    meter.add(second, 100.6)
    assert meter.summary() == "0.2 s of audio in 0.60 s (RTF 2.50), first audio after 500 ms"
    assert meter.frames == 3


def test_waiting_for_text_does_not_count_as_work() -> None:
    meter = SpeechMeter(0.0)
    meter.add(split_packets(speechlike(1.0), (24_000,))[0], 3.0)
    assert "RTF 3.00" in meter.summary()
    assert "in 0.50 s (RTF 0.50)" in meter.summary(2.5)
    assert meter.summary(2.5).endswith("waited 2.50 s for text")


def test_every_finish_reason_is_described() -> None:
    assert set(FINISH_REASONS) == set(FinishReason)
    assert finish_line(FinishReason.EOS, 12, "40 frames") == (
        "finished: eos (the model emitted end of speech) after 12 frames; limit: 40 frames"
    )


@pytest.mark.parametrize("reason", FinishReason)
def test_early_stop_warning(reason: FinishReason) -> None:
    early = (FinishReason.MAX_FRAMES, FinishReason.BUDGET, FinishReason.SILENCE, FinishReason.REPEAT)
    warning = early_stop_warning(reason, 12, "12 frames (--max-frames)")
    assert (warning is not None) == (reason in early)
    if warning is not None:
        assert warning.startswith("warning: stopped early after 12 frames: ")
