"""What became of each request: kept for a while so that a client whose connection broke can ask.

Owns the latest records, bounded in number. Ids are made here and never taken from a client. Knows no text: what was
said is not kept.
"""

from __future__ import annotations

import secrets
from collections import OrderedDict
from dataclasses import dataclass, field

from legato.engine.stats import Mark, StreamTiming


def new_request_id() -> str:
    """An id that nobody else has and nobody can guess."""
    return f"req_{secrets.token_hex(12)}"


@dataclass(slots=True)
class RequestRecord:
    """One request, filled in as it goes."""

    id: str
    route: str
    status: str = "accepted"
    """accepted, speaking, finished, cancelled, failed or refused."""
    finish_reason: str = ""
    error_code: str = ""
    error_message: str = ""
    response_format: str = ""
    sample_rate_hz: int = 0
    bytes_sent: int = 0
    encode_s: float = 0.0
    input_tokens: int = 0
    frames: int = 0
    samples: int = 0
    notes: tuple[str, ...] = ()
    timings: list[StreamTiming] = field(default_factory=list)
    playout: dict[str, float] = field(default_factory=dict)
    """What the client said about hearing it; empty until it does."""

    def as_json(self) -> dict[str, object]:
        """For the client."""
        return {
            "id": self.id,
            "object": "speech.request",
            "route": self.route,
            "status": self.status,
            "finish_reason": self.finish_reason or None,
            "error": {"code": self.error_code, "message": self.error_message} if self.error_code else None,
            "response_format": self.response_format or None,
            "frames": self.frames,
            "samples": self.samples,
            "sample_rate": self.sample_rate_hz or None,
            "audio_seconds": self.samples / self.sample_rate_hz if self.sample_rate_hz else 0.0,
            "bytes_sent": self.bytes_sent,
            "usage": usage(self.input_tokens, self.frames),
            "timing": [timing_json(timing, encode_s=self.encode_s) for timing in self.timings],
            "playout": dict(self.playout),
            "notes": list(self.notes),
        }


def usage(input_tokens: int, frames: int) -> dict[str, int]:
    """OpenAI's usage: tokens of the text track, and one output token for each frame of speech."""
    return {"input_tokens": input_tokens, "output_tokens": frames, "total_tokens": input_tokens + frames}


def timing_json(timing: StreamTiming, *, encode_s: float = 0.0) -> dict[str, object]:
    """The stages of docs/latency.md up to PCM on the host, in milliseconds, and each packet since the request."""
    received_s = timing.marks.get(Mark.RECEIVED, 0.0)
    body: dict[str, object] = {
        "stages_ms": {name: round(1000 * spent, 3) for name, spent in timing.stages_s().items()},
        "later_text_wait_ms": round(1000 * timing.later_text_wait_s, 3),
        "packets_ms": [round(1000 * (at_s - received_s), 3) for at_s in timing.packet_s],
        "encode_ms": round(1000 * encode_s, 3),
    }
    if timing.packet_s:
        body["first_packet_ms"] = round(1000 * timing.first_packet_s, 3)
    return body


class RequestRecords:
    """The latest records by id."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._records: OrderedDict[str, RequestRecord] = OrderedDict()

    def add(self, record: RequestRecord) -> None:
        """Keep `record`; the oldest one goes if there are too many."""
        self._records[record.id] = record
        while len(self._records) > self._limit:
            self._records.popitem(last=False)

    def find(self, request_id: str) -> RequestRecord | None:
        """The record with this id."""
        return self._records.get(request_id)
