"""When the stages of one stream happened. The clock is an argument; this file reads none and does no arithmetic on
tensors.

The stages are those of docs/latency.md up to PCM on the host: contiguous, each from one mark to the next. Time spent
waiting for the client's text is added up apart from model time.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum


class Mark(Enum):
    """Instants of a stream, in order."""

    RECEIVED = "received"
    ENOUGH_TEXT = "enough text"
    ADMITTED = "admitted"
    PREFILLED = "prefilled"
    FIRST_CODE = "first code"
    FIRST_FRAME = "first frame"
    FIRST_WINDOW = "first window ready"
    FIRST_PACKET = "first packet on the host"
    LAST_PACKET = "last packet on the host"


STAGES: tuple[tuple[str, Mark, Mark], ...] = (
    ("input wait", Mark.RECEIVED, Mark.ENOUGH_TEXT),
    ("queue", Mark.ENOUGH_TEXT, Mark.ADMITTED),
    ("prefill", Mark.ADMITTED, Mark.PREFILLED),
    ("first code", Mark.PREFILLED, Mark.FIRST_CODE),
    ("first frame", Mark.FIRST_CODE, Mark.FIRST_FRAME),
    ("packet fill", Mark.FIRST_FRAME, Mark.FIRST_WINDOW),
    ("codec", Mark.FIRST_WINDOW, Mark.FIRST_PACKET),
)
"""Name, from, to. Neighbours share their mark, so that the stages sum to the first packet."""


@dataclass(slots=True)
class StreamTiming:
    """The marks of one stream, in seconds of the clock that the engine was given."""

    marks: dict[Mark, float] = field(default_factory=dict)
    packet_s: list[float] = field(default_factory=list)
    later_text_wait_s: float = 0.0
    _waiting_since_s: list[float] = field(default_factory=list)

    def mark(self, mark: Mark, now_s: float) -> None:
        """Record `mark` at `now_s`; the first time counts."""
        self.marks.setdefault(mark, now_s)

    def packet(self, now_s: float) -> None:
        """A packet reached the host."""
        self.mark(Mark.FIRST_PACKET, now_s)
        self.marks[Mark.LAST_PACKET] = now_s
        self.packet_s.append(now_s)

    def text_wait_began(self, now_s: float) -> None:
        """The talker needs text that has not come."""
        self._waiting_since_s.append(now_s)

    def text_wait_ended(self, now_s: float) -> None:
        """It has come; the wait is input wait, not model time."""
        self.later_text_wait_s += now_s - self._waiting_since_s.pop()

    def stages_s(self) -> dict[str, float]:
        """Seconds of each stage whose two marks exist."""
        return {
            name: self.marks[end] - self.marks[start]
            for name, start, end in STAGES
            if start in self.marks and end in self.marks
        }

    @property
    def first_packet_s(self) -> float:
        """Request to PCM on the host. `KeyError` while there is no packet."""
        return self.marks[Mark.FIRST_PACKET] - self.marks[Mark.RECEIVED]
