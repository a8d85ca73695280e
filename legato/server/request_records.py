"""Status and timing of recent requests, so that a client whose connection broke can query the outcome.

`RequestRecords` keeps the latest records, up to a limit. Request ids are generated here and never taken from a client.
Texts are not stored.
"""

from __future__ import annotations

import secrets
from collections import OrderedDict
from dataclasses import dataclass, field

from legato.engine.stats import Mark, StreamTiming


def new_request_id(replica: str = "") -> str:
    """A unique id that cannot be guessed. `replica`: the server of a cluster that knows about the request."""
    return f"req_{replica}{'-' if replica else ''}{secrets.token_hex(12)}"


@dataclass(slots=True)
class RequestRecord:
    """One request; its fields are updated while it runs."""

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
    timing: StreamTiming | None = None
    """Set once the engine has accepted the stream."""
    playout: dict[str, float] = field(default_factory=dict)
    """The client's playback report; empty until it is received."""

    def as_json(self) -> dict[str, object]:
        """The response of `/v1/requests/{id}`."""
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
            "timing": self.timings_json(encode_s=self.encode_s),
            "playout": dict(self.playout),
            "notes": list(self.notes),
        }

    def timings_json(self, *, encode_s: float = 0.0) -> list[dict[str, object]]:
        """The timing as the protocols send it: a list, empty until the stream has started."""
        return [] if self.timing is None else [timing_json(self.timing, encode_s=encode_s)]


def usage(input_tokens: int, frames: int) -> dict[str, int]:
    """OpenAI's usage object: text tokens in, one output token per audio frame."""
    return {"input_tokens": input_tokens, "output_tokens": frames, "total_tokens": input_tokens + frames}


def timing_json(timing: StreamTiming, *, encode_s: float = 0.0) -> dict[str, object]:
    """Timing in ms: the stages of docs/latency.md up to PCM on the host, and each packet since the request."""
    received_s = timing.marks.get(Mark.RECEIVED, 0.0)
    body: dict[str, object] = {
        "stages_ms": {name: round(1000 * stage_s, 3) for name, stage_s in timing.stages_s().items()},
        "later_text_wait_ms": round(1000 * timing.text_stall_s, 3),
        "packets_ms": [round(1000 * (at_s - received_s), 3) for at_s in timing.packet_s],
        "encode_ms": round(1000 * encode_s, 3),
    }
    if timing.packet_s:
        body["first_packet_ms"] = round(1000 * timing.first_packet_s, 3)
        body["gapless_first_packet_ms"] = round(1000 * timing.gapless_first_audio_s, 3)
        body["underruns"] = timing.underruns
    return body


class RequestRecords:
    """The latest records by request id."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._records: OrderedDict[str, RequestRecord] = OrderedDict()

    def add(self, record: RequestRecord) -> None:
        """Store `record`, and evict the oldest one beyond the limit."""
        self._records[record.id] = record
        while len(self._records) > self._limit:
            self._records.popitem(last=False)

    def find(self, request_id: str) -> RequestRecord | None:
        """The record of a request, or None if it is unknown or was evicted."""
        return self._records.get(request_id)
