"""Server-sent events out of bytes that come in pieces of any length. Owns the unfinished event between two pieces.

Knows no connection. Lines and events are those of the HTML standard, section 9.2, of which a speech stream uses `data`.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class SpeechEvent:
    """One event: its type, the sound in it (none but in deltas), and everything that it says."""

    type: str
    audio: bytes = field(repr=False)
    body: dict[str, object]


def events_of(pieces: Iterator[bytes]) -> Iterator[SpeechEvent]:
    """The events in a body."""
    data: list[str] = []
    for line in _lines(pieces):
        if line.startswith("data:"):
            data.append(line[5:].removeprefix(" "))
        elif not line and data:
            yield _event("\n".join(data))
            data = []


def _event(text: str) -> SpeechEvent:
    body = json.loads(text)
    if not isinstance(body, dict):
        raise ValueError(f"an event must be a JSON object, not {text[:80]!r}")
    audio = base64.b64decode(str(body.get("audio", "")))
    return SpeechEvent(str(body.get("type", "")), audio, body)


def _lines(pieces: Iterator[bytes]) -> Iterator[str]:
    rest = b""
    for piece in pieces:
        *whole, rest = (rest + piece).split(b"\n")
        for line in whole:
            yield line.removesuffix(b"\r").decode()
