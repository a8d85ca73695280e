"""When the stages of a stream happened, and what all streams of an engine add up to.

The clock is an argument; this file reads none and does no arithmetic on tensors. The stages are those of
docs/latency.md up to PCM on the host: contiguous, each from one mark to the next. Time spent waiting for the client's
text is added up apart from model time. `StreamTiming` lives as long as its stream, `EngineStats` as long as its engine.
"""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass, field
from enum import Enum

from legato.engine.histogram import RATIO, ROWS, SECONDS, Histogram, HistogramValue


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
    """The marks of one stream, in seconds of the clock that the engine was given.

    A listener is assumed who starts with the first packet and plays on: `underruns` counts the packets that came after
    he had run dry, `underrun_s` how long he waited for them. Waits for the client's own text are not among them.
    """

    marks: dict[Mark, float] = field(default_factory=dict)
    packet_s: list[float] = field(default_factory=list)
    later_text_wait_s: float = 0.0
    audio_s: float = 0.0
    underruns: int = 0
    underrun_s: float = 0.0
    _waiting_since_s: list[float] = field(default_factory=list)
    _dry_at_s: float = 0.0
    _playing: bool = False

    def mark(self, mark: Mark, now_s: float) -> None:
        """Record `mark` at `now_s`; the first time counts."""
        self.marks.setdefault(mark, now_s)

    def packet(self, now_s: float, audio_s: float, *, hungry: bool = True) -> None:
        """A packet of `audio_s` seconds reached the host. `hungry`: the listener had taken all there was before."""
        self.mark(Mark.FIRST_PACKET, now_s)
        self.marks[Mark.LAST_PACKET] = now_s
        self.packet_s.append(now_s)
        late_s = now_s - self._dry_at_s
        if self._playing and hungry and late_s > 0:
            self.underruns += 1
            self.underrun_s += late_s
        self.audio_s += audio_s
        self._dry_at_s = max(self._dry_at_s, now_s) + audio_s
        self._playing = True

    def slack_s(self, now_s: float) -> float:
        """Seconds until the listener runs dry; before his first packet minus the time that he waits for it."""
        return (self._dry_at_s if self.packet_s else self.marks[Mark.RECEIVED]) - now_s

    def text_wait_began(self, now_s: float) -> None:
        """The talker needs text that has not come."""
        self._waiting_since_s.append(now_s)

    def text_wait_ended(self, now_s: float) -> None:
        """It has come; the wait is input wait, not model time, and what is late after it is not the engine's fault."""
        self.later_text_wait_s += now_s - self._waiting_since_s.pop()
        self._playing = False

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

    def real_time_factors(self) -> list[float]:
        """Seconds from admission to the last packet, less waits for text, per second of sound: one, or none yet."""
        if self.audio_s <= 0:
            return []
        spent_s = self.marks[Mark.LAST_PACKET] - self.marks[Mark.ADMITTED] - self.later_text_wait_s
        return [spent_s / self.audio_s]


# --- all streams -----------------------------------------------------------------------------------------------------


class Part(Enum):
    """What computes."""

    PREFILL = "prefill"
    TALKER = "talker"
    PREDICTOR = "code predictor"
    CODEC = "codec"


@dataclass(frozen=True, slots=True)
class PoolUse:
    """Slots of a pool, and how many of them nobody holds."""

    slots: int
    free: int


@dataclass(frozen=True, slots=True)
class EngineSnapshot:
    """What an engine did since it started, at one instant; plain values for whoever exports them.

    `outcomes` counts streams by finish reason ("failed" among them), `errors` the failed ones by the error's code.
    `stages_s`, `first_packet_s` and `packet_gap_s` are histograms of seconds, `rows` of the rows that a part computed
    in one turn, `busy_s` of the seconds that it took. Packet gaps, real-time factors and underruns are counted where
    they mean something: not for background streams, and factors not for paced ones, which are held back on purpose.
    """

    streams_open: int
    talker_slots: PoolUse
    codec_slots: PoolUse
    outcomes: dict[str, int]
    errors: dict[str, int]
    frames: int
    audio_s: float
    text_wait_s: float
    underruns: int
    underrun_s: float
    stages_s: dict[str, HistogramValue]
    first_packet_s: HistogramValue
    packet_gap_s: HistogramValue
    real_time_factor: HistogramValue
    rows: dict[str, HistogramValue]
    busy_s: dict[str, HistogramValue]


class EngineStats:
    """The sums. Filled by the engine's thread, read from any."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._outcomes: Counter[str] = Counter()
        self._errors: Counter[str] = Counter()
        self._frames = 0
        self._underruns = 0
        self._audio_s = self._text_wait_s = self._underrun_s = 0.0
        self._stages = {name: Histogram(SECONDS) for name, _, _ in STAGES}
        self._first_packet, self._gap, self._factor = Histogram(SECONDS), Histogram(SECONDS), Histogram(RATIO)
        self._rows = {part: Histogram(ROWS) for part in Part}
        self._busy = {part: Histogram(SECONDS) for part in Part}

    def computed(self, part: Part, rows: int, seconds: float) -> None:
        """A part computed `rows` rows in a turn; nothing is counted for none."""
        if rows:
            with self._lock:
                self._rows[part].observe(rows)
                self._busy[part].observe(seconds)

    def frames_made(self, frames: int) -> None:
        """Frames were decoded and handed over."""
        with self._lock:
            self._frames += frames

    def stream_over(self, timing: StreamTiming, outcome: str, error: str, *, live: bool, paced: bool) -> None:
        """A stream left. `outcome`: its finish reason; `error`: the code of what failed it, or ""."""
        with self._lock:
            self._outcomes[outcome] += 1
            if error:
                self._errors[error] += 1
            self._audio_s += timing.audio_s
            self._text_wait_s += timing.later_text_wait_s
            for name, seconds in timing.stages_s().items():
                self._stages[name].observe(seconds)
            if not timing.packet_s:
                return
            self._first_packet.observe(timing.first_packet_s)
            if live:
                self._underruns += timing.underruns
                self._underrun_s += timing.underrun_s
                for earlier, later in zip(timing.packet_s, timing.packet_s[1:], strict=False):
                    self._gap.observe(later - earlier)
            for factor in timing.real_time_factors() if live and not paced else []:
                self._factor.observe(factor)

    def snapshot(self, *, streams_open: int, talker_slots: PoolUse, codec_slots: PoolUse) -> EngineSnapshot:
        """Everything counted so far, with the present use of the slots."""
        with self._lock:
            return EngineSnapshot(
                streams_open=streams_open,
                talker_slots=talker_slots,
                codec_slots=codec_slots,
                outcomes=dict(self._outcomes),
                errors=dict(self._errors),
                frames=self._frames,
                audio_s=self._audio_s,
                text_wait_s=self._text_wait_s,
                underruns=self._underruns,
                underrun_s=self._underrun_s,
                stages_s={name: each.value() for name, each in self._stages.items()},
                first_packet_s=self._first_packet.value(),
                packet_gap_s=self._gap.value(),
                real_time_factor=self._factor.value(),
                rows={part.value: each.value() for part, each in self._rows.items()},
                busy_s={part.value: each.value() for part, each in self._busy.items()},
            )
