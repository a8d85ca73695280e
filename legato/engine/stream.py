"""One unbroken waveform in the engine: its request, its sequences in order, its codec lease, what was sent.

Lives from submission until its last packet or its error was handed over. Only the loop touches it. Knows no tensor:
frames are tuples, samples go by as bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from legato.engine.framing import PacketPolicy, window_frames
from legato.engine.intake import TextIntake
from legato.engine.leases import CodecLease
from legato.engine.sequence import Sequence, SequenceEvent
from legato.engine.stats import StreamTiming
from legato.errors import LegatoError
from legato.flow import FinishReason, Frame, Packet, PromptSpec, Sampling, StreamId
from legato.models.voice import Voice
from legato.text.budget import Watchdog

StreamEvent = Packet | LegatoError
"""What a stream hands over: packets, and at most one error, which is then the last."""


@dataclass(frozen=True, slots=True)
class StreamRequest:
    """Everything about a stream that is settled before its text comes.

    `max_frames` is the caller's limit over the whole stream; 0 leaves the text-scaled budget. `voices` holds the
    clone's voice or nothing.
    """

    spec: PromptSpec
    sampling: Sampling
    seed: int
    packets: PacketPolicy
    max_frames: int = 0
    voices: tuple[Voice, ...] = ()


@dataclass(slots=True)
class Stream:
    """The loop's record of one stream. `demand_frames`: how many frames the client wants by now (negative: all)."""

    id: StreamId
    request: StreamRequest
    intake: TextIntake
    sink: Callable[[StreamEvent], None]
    timing: StreamTiming
    watchdog: Watchdog
    demand_frames: int = -1
    packets: int = 0
    samples: int = 0
    leases: list[CodecLease] = field(default_factory=list)
    closed: bool = False

    @property
    def sequences(self) -> list[Sequence]:
        """All sequences known so far, in order."""
        return self.intake.sequences

    @property
    def frames(self) -> int:
        """Frames generated so far."""
        return sum(sequence.frames for sequence in self.sequences)

    @property
    def generation_over(self) -> bool:
        """True when no further frame will come."""
        return self.intake.ended and all(sequence.has_ended for sequence in self.sequences)

    def is_head(self, sequence: Sequence) -> bool:
        """True when all earlier sequences have ended."""
        return all(earlier.has_ended for earlier in self.sequences[: sequence.number])

    def wants_more(self) -> bool:
        """True while the client's demand reaches beyond what was generated."""
        return self.demand_frames < 0 or self.frames < self.demand_frames

    def ready_frames(self) -> int:
        """Frames that can be decoded now, in order: those of the head and of what ended before it."""
        count = 0
        for sequence in self.sequences:
            count += len(sequence.undecoded)
            if not sequence.has_ended:
                break
        return count

    def take_window(self) -> list[Frame]:
        """The frames of the next packet, removed; empty while it is not full."""
        wanted = window_frames(
            self.request.packets, packets=self.packets, available=self.ready_frames(), ended=self.generation_over
        )
        window: list[Frame] = []
        for sequence in self.sequences:
            while sequence.undecoded and len(window) < wanted:
                window.append(sequence.undecoded.popleft())
        return window

    def finish_reason(self) -> FinishReason:
        """Why the stream ended: the first end that was not a proper one, else how its last sequence ended."""
        proper = (FinishReason.EOS, FinishReason.TRACK_END)
        reasons = [reason for sequence in self.sequences for reason in sequence.reasons]
        return next((reason for reason in reasons if reason not in proper), reasons[-1])

    def stop(self, event: SequenceEvent, reason: FinishReason) -> list[Sequence]:
        """Take `event` (cancel or fail) on everything that is not over; returns the sequences it hit."""
        hit = [sequence for sequence in self.sequences if not sequence.has_ended or sequence.undecoded]
        for sequence in hit:
            sequence.take(event)
            sequence.undecoded.clear()
            sequence.reasons.append(reason)
        return hit
