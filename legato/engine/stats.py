"""Timing of one stream and statistics of one engine.

`StreamTiming` lives as long as its stream, `EngineStats` as long as its engine. This module reads no clock; times are
passed in. docs/latency.md defines the stages; those up to PCM on the host are measured here. They are contiguous: each
stage starts at the mark where the previous one ends. Waiting for the client's text is not counted as compute time.
"""

from __future__ import annotations

import threading
import warnings
from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field
from enum import Enum

from legato.errors import StateError

# --- histograms ------------------------------------------------------------------------------------------------------

SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
RATIO = (0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9, 1.0, 1.2, 1.5, 2.0, 3.0, 5.0)
ROWS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0)


@dataclass(frozen=True, slots=True)
class HistogramValue:
    """Snapshot of a histogram. `counts[i]`: number of values above `bounds[i - 1]` and at most `bounds[i]`.

    There is one more count than bounds, for values above the last bound. `total`: sum of all values. Snapshots of
    several engines with equal bounds can be added.
    """

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    total: float

    @property
    def count(self) -> int:
        """Number of values."""
        return sum(self.counts)

    @property
    def mean(self) -> float:
        """Mean of the values; 0 if there are none."""
        return self.total / self.count if self.count else 0.0

    def quantile_bound(self, q: float) -> float:
        """Upper bound of the bin that contains the `q` quantile (0 to 1); infinity above the last bound."""
        needed, seen = q * self.count, 0
        for bound, count in zip(self.bounds, self.counts, strict=False):
            seen += count
            if seen >= needed:
                return bound
        return float("inf")


class Histogram:
    """Counts values in fixed bins."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._total = 0.0

    def observe(self, value: float) -> None:
        """Count `value`."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._total += value

    def value(self) -> HistogramValue:
        """Snapshot of the counts."""
        return HistogramValue(self._bounds, tuple(self._counts), self._total)


# --- one stream ------------------------------------------------------------------------------------------------------


class Mark(Enum):
    """Points in time of a stream, in order."""

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
"""(name, start, end). Adjacent stages share a mark, so the stages sum to the time to the first packet."""


@dataclass(slots=True)
class StreamTiming:
    """Marks and packet times of one stream, in seconds on the engine's clock.

    Underruns are computed for a client that starts playback with the first packet and does not pause. `underruns`:
    packets that arrived after the playback buffer was empty. `underrun_s`: total time for which it was empty. Waiting
    for the client's own text is not an underrun. `text_stall_s`: time spent waiting for text after the first frame.
    `gapless_start_s`: the earliest time at which a client can start playback and hear no gap; known after the last
    packet. Waits for the client's own text are subtracted.
    """

    marks: dict[Mark, float] = field(default_factory=dict)
    packet_s: list[float] = field(default_factory=list)
    text_stall_s: float = 0.0
    parked_s: float = 0.0
    audio_s: float = 0.0
    underruns: int = 0
    underrun_s: float = 0.0
    gapless_start_s: float = 0.0
    _text_wait_start_s: float | None = None
    _parked_at_s: float | None = None
    _buffer_empty_at_s: float = 0.0
    _playing: bool = False

    @property
    def later_text_wait_s(self) -> float:
        """Deprecated: use `text_stall_s`."""
        warnings.warn("later_text_wait_s is deprecated: use text_stall_s", DeprecationWarning, stacklevel=2)
        return self.text_stall_s

    def mark(self, mark: Mark, now_s: float) -> None:
        """Record `mark`; only the first call for each mark counts."""
        self.marks.setdefault(mark, now_s)

    def packet(self, now_s: float, audio_s: float, *, client_waiting: bool = True) -> None:
        """Record a packet of `audio_s` seconds. `client_waiting`: the client had consumed all earlier packets."""
        self.mark(Mark.FIRST_PACKET, now_s)
        self.marks[Mark.LAST_PACKET] = now_s
        self.packet_s.append(now_s)
        late_s = now_s - self._buffer_empty_at_s
        if self._playing and client_waiting and late_s > 0:
            self.underruns += 1
            self.underrun_s += late_s
        if client_waiting or len(self.packet_s) == 1:
            # This packet must be played `audio_s` seconds after the start of playback.
            self.gapless_start_s = max(self.gapless_start_s, now_s - self.text_stall_s - self.audio_s)
        self.audio_s += audio_s
        self._buffer_empty_at_s = max(self._buffer_empty_at_s, now_s) + audio_s
        self._playing = True

    def slack_s(self, now_s: float) -> float:
        """Seconds until the playback buffer is empty. Before the first packet: the negative time since the request."""
        return (self._buffer_empty_at_s if self.packet_s else self.marks[Mark.RECEIVED]) - now_s

    def text_wait_began(self, now_s: float) -> None:
        """Record that the talker starts to wait for the client's text."""
        self._text_wait_start_s = now_s

    def text_wait_ended(self, now_s: float) -> None:
        """Record that the text arrived. The next packet is not counted as late, because the client caused the delay."""
        if self._text_wait_start_s is None:
            raise StateError("text_wait_ended() was called without text_wait_began()")
        self.text_stall_s += now_s - self._text_wait_start_s
        self._text_wait_start_s = None
        self._playing = False

    @property
    def waiting_for_text(self) -> bool:
        """True between `text_wait_began` and `text_wait_ended`."""
        return self._text_wait_start_s is not None

    def parked(self, now_s: float) -> None:
        """The stream loses its slots."""
        self._parked_at_s = now_s

    def resumed(self, now_s: float) -> None:
        """The stream has slots again."""
        if self._parked_at_s is None:
            raise StateError("a stream was resumed that was not parked")
        self.parked_s += now_s - self._parked_at_s
        self._parked_at_s = None

    def stages_s(self) -> dict[str, float]:
        """Duration of each stage whose two marks exist."""
        return {
            name: self.marks[end] - self.marks[start]
            for name, start, end in STAGES
            if start in self.marks and end in self.marks
        }

    @property
    def first_packet_s(self) -> float:
        """Time from the request to the first packet on the host. `KeyError` before the first packet."""
        return self.marks[Mark.FIRST_PACKET] - self.marks[Mark.RECEIVED]

    @property
    def gapless_first_audio_s(self) -> float:
        """Gapless TTFA: time from the request to the earliest start of playback without an underrun.

        At least `first_packet_s`; later packets can only raise it. `KeyError` before the first packet.
        """
        return max(self.gapless_start_s - self.marks[Mark.RECEIVED], self.first_packet_s)

    def real_time_factor(self) -> float | None:
        """Seconds from admission to the last packet, without waits for text or a slot, per second of audio.

        None without audio.
        """
        if self.audio_s <= 0:
            return None
        waited_s = max(self.text_stall_s, self.parked_s)  # a stream is mostly parked while it waits for text
        compute_s = self.marks[Mark.LAST_PACKET] - self.marks[Mark.ADMITTED] - waited_s
        return compute_s / self.audio_s


# --- one engine ------------------------------------------------------------------------------------------------------


class StepPhase(Enum):
    """Phases of an engine step that are timed separately."""

    PREFILL = "prefill"
    TALKER = "talker"
    PREDICTOR = "code predictor"
    CODEC = "codec"


@dataclass(frozen=True, slots=True)
class PoolUse:
    """Total and free slots of a pool."""

    slots: int
    free: int


@dataclass(frozen=True, slots=True)
class EngineSnapshot:
    """Statistics of an engine since its start, as plain values.

    `streams_parked`: streams that lost their slots to others for now; `parks` counts how often that happened.
    `outcomes` counts streams by finish reason, with "failed" among them; `errors` counts failed streams by error code.
    `stages_s`, `first_packet_s`, `gapless_s` and `packet_gap_s` are histograms of seconds. `rows` and `busy_s` have one
    histogram for each step phase: batch size in one step, and its duration. Gapless TTFA, packet gaps and underruns
    exclude background streams.
    Real-time factors also exclude paced streams, which flow control slows down on purpose.
    """

    streams_open: int
    streams_parked: int
    parks: int
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
    gapless_s: HistogramValue
    packet_gap_s: HistogramValue
    real_time_factor: HistogramValue
    rows: dict[str, HistogramValue]
    busy_s: dict[str, HistogramValue]


class EngineStats:
    """Accumulates statistics. The engine thread writes; any thread may take a snapshot."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._outcomes: Counter[str] = Counter()
        self._errors: Counter[str] = Counter()
        self._frames = 0
        self._parks = 0
        self._underruns = 0
        self._audio_s = self._text_wait_s = self._underrun_s = 0.0
        self._stages = {name: Histogram(SECONDS) for name, _, _ in STAGES}
        self._first_packet, self._gap, self._factor = Histogram(SECONDS), Histogram(SECONDS), Histogram(RATIO)
        self._gapless = Histogram(SECONDS)
        self._rows = {phase: Histogram(ROWS) for phase in StepPhase}
        self._busy = {phase: Histogram(SECONDS) for phase in StepPhase}

    def add_compute(self, phase: StepPhase, rows: int, seconds: float) -> None:
        """Record the batch size and duration of a phase in one step. A phase without rows is not recorded."""
        if rows:
            with self._lock:
                self._rows[phase].observe(rows)
                self._busy[phase].observe(seconds)

    def add_parked(self) -> None:
        """Count a stream that was parked."""
        with self._lock:
            self._parks += 1

    def add_frames(self, frames: int) -> None:
        """Count frames that were decoded and delivered."""
        with self._lock:
            self._frames += frames

    def add_stream(self, timing: StreamTiming, outcome: str, error: str, *, live: bool, paced: bool) -> None:
        """Count a stream that ended. `outcome`: finish reason. `error`: error code, "" if it did not fail."""
        with self._lock:
            self._outcomes[outcome] += 1
            if error:
                self._errors[error] += 1
            self._audio_s += timing.audio_s
            self._text_wait_s += timing.text_stall_s
            for name, seconds in timing.stages_s().items():
                self._stages[name].observe(seconds)
            if not timing.packet_s:
                return
            self._first_packet.observe(timing.first_packet_s)
            if live:
                self._gapless.observe(timing.gapless_first_audio_s)
                self._underruns += timing.underruns
                self._underrun_s += timing.underrun_s
                for earlier, later in zip(timing.packet_s, timing.packet_s[1:], strict=False):
                    self._gap.observe(later - earlier)
            factor = timing.real_time_factor()
            if factor is not None and live and not paced:
                self._factor.observe(factor)

    def snapshot(
        self, *, streams_open: int, streams_parked: int, talker_slots: PoolUse, codec_slots: PoolUse
    ) -> EngineSnapshot:
        """All counts so far, with the current use of the slots."""
        with self._lock:
            return EngineSnapshot(
                streams_open=streams_open,
                streams_parked=streams_parked,
                parks=self._parks,
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
                gapless_s=self._gapless.value(),
                packet_gap_s=self._gap.value(),
                real_time_factor=self._factor.value(),
                rows={phase.value: each.value() for phase, each in self._rows.items()},
                busy_s={phase.value: each.value() for phase, each in self._busy.items()},
            )
