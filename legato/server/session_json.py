"""JSON of word times and interruption reports, shared by the WebSocket protocols.

Pure functions. The keys are part of the wire protocols.
"""

from __future__ import annotations

from collections.abc import Sequence

from legato.session.events import InterruptionReport
from legato.session.heard import HeardText
from legato.types import SpokenWord


def convert_samples(samples: int, *, from_hz: int, to_hz: int) -> int:
    """A position at `from_hz` as whole samples at `to_hz`, rounded down: a client never played more than was sent."""
    return samples * to_hz // from_hz


def words_json(words: Sequence[SpokenWord], text: str, rate_hz: int) -> list[dict[str, object]]:
    """Words with their positions in the text and their times. `rate_hz`: sample rate of the word times."""
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


def interruption_json(
    report: InterruptionReport, heard: HeardText, text: str, *, model_hz: int, rate_hz: int
) -> dict[str, object]:
    """The JSON fields of an interruption report. Samples are converted from `model_hz` to `rate_hz`."""
    return {
        "sent_samples": convert_samples(report.sent_samples, from_hz=model_hz, to_hz=rate_hz),
        "played_samples": convert_samples(report.played_samples, from_hz=model_hz, to_hz=rate_hz),
        "played_by": report.position_source.value,
        "sample_rate": rate_hz,
        "heard_text": text[: heard.characters],
        "heard_chars": heard.characters,
        "heard_by": heard.source.value,
        "heard_error_chars": heard.error_characters,
    }
