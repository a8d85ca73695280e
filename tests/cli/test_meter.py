"""The figures that are told: what they count, and that waiting for text is no work."""

from __future__ import annotations

from legato.cli.meter import ENDINGS, SpeechMeter, ending_line
from legato.flow import FinishReason
from tests.audio.packets import cut, speechlike


def test_the_figures_are_those_of_a_known_run() -> None:
    first, second, *_ = cut(speechlike(1.0))
    meter = SpeechMeter(100.0)
    assert meter.line() == "no packet yet"
    meter.take(first, 100.5)
    assert meter.line() == "1 packet | 0.08 s of audio | real-time factor 6.25 | first packet 0.50 s"
    meter.take(second, 100.6)
    assert meter.line() == "2 packets | 0.24 s of audio | real-time factor 2.50 | first packet 0.50 s"
    assert meter.frames == 3


def test_waiting_for_text_is_not_work() -> None:
    meter = SpeechMeter(0.0)
    meter.take(cut(speechlike(1.0), (24_000,))[0], 3.0)
    assert "real-time factor 3.00" in meter.line()
    assert "real-time factor 0.50" in meter.line(2.5)
    assert meter.line(2.5).endswith("waited 2.50 s for text")


def test_every_reason_has_its_words() -> None:
    assert set(ENDINGS) == set(FinishReason)
    assert ending_line(FinishReason.EOS, 12, "40 frames") == (
        "finished: eos (the model said that it was done) after 12 frames; limit: 40 frames"
    )
