"""Parse server-sent events from a byte stream in blocks of any size.

The format is defined in the HTML standard, section 9.2. Speech streams use only the field `data`.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class SpeechEvent:
    """One event: its type, its decoded audio (empty except in deltas) and the whole JSON body."""

    type: str
    audio: bytes = field(repr=False)
    body: dict[str, object]


def parse_events(blocks: Iterator[bytes]) -> Iterator[SpeechEvent]:
    """Yield the events of a response body."""
    data: list[str] = []
    for line in _lines(blocks):
        if line.startswith("data:"):
            data.append(line[5:].removeprefix(" "))
        elif not line and data:
            yield _parse_event("\n".join(data))
            data = []


def _parse_event(text: str) -> SpeechEvent:
    body = json.loads(text)
    if not isinstance(body, dict):
        raise ValueError(f"an event must be a JSON object, not {text[:80]!r}")
    audio = base64.b64decode(str(body.get("audio", "")))
    return SpeechEvent(str(body.get("type", "")), audio, body)


def _lines(blocks: Iterator[bytes]) -> Iterator[str]:
    rest = b""  # an incomplete line at the end of a block
    for block in blocks:
        *lines, rest = (rest + block).split(b"\n")
        for line in lines:
            yield line.removesuffix(b"\r").decode()
