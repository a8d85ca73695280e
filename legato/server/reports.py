"""What a client is told of words and of interruptions, the same on every socket. Pure; owns nothing."""

from __future__ import annotations

from collections.abc import Sequence

from legato.flow import SpokenWord
from legato.session.events import Interrupted
from legato.session.heard import Heard


def words_json(words: Sequence[SpokenWord], text: str, rate_hz: int) -> list[dict[str, object]]:
    """Words with their place in the text and their times; `rate_hz` is that of their samples."""
    return [
        {
            "text": text[word.text_start : word.text_end],
            "text_start": word.text_start,
            "text_end": word.text_end,
            "start_s": round(word.first_sample / rate_hz, 4),
            "end_s": round(word.end_sample / rate_hz, 4),
        }
        for word in words
    ]


def interruption_json(report: Interrupted, heard: Heard, text: str, *, own_hz: int, rate_hz: int) -> dict[str, object]:
    """What was sent, what was played, and what of the text was heard; samples at the rate of the answer."""
    return {
        "sent_samples": round(report.sent_samples * rate_hz / own_hz),
        "played_samples": round(report.played_samples * rate_hz / own_hz),
        "played_by": report.played_by.value,
        "sample_rate": rate_hz,
        "heard_text": text[: heard.characters],
        "heard_chars": heard.characters,
        "heard_by": heard.by.value,
        "heard_error_chars": heard.error_characters,
    }
