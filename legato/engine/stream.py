"""One unbroken waveform in the engine: its request, its sequences in order, its codec lease, what was sent.

Lives from submission until its last packet or its error was handed over. Only the loop touches it. Knows no tensor:
frames are tuples, samples go by as bytes.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from legato.engine.demand import UNLIMITED, Demand, Pace
from legato.engine.framing import Haste, PacketPolicy, window_packets
from legato.engine.intake import TextIntake
from legato.engine.leases import CodecLease
from legato.engine.sequence import OVER, Sequence, SequenceEvent, SequenceState
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
    clone's voice or nothing. `demand` holds from the first frame on, until the client sets another.
    """

    spec: PromptSpec
    sampling: Sampling
    seed: int
    packets: PacketPolicy
    max_frames: int = 0
    voices: tuple[Voice, ...] = ()
    demand: Demand = UNLIMITED
    speed: float = 1.0


@dataclass(slots=True)
class Stream:
    """The loop's record of one stream.

    `taken`: frames that the listener has taken, as far as he says it. `frames`: frames generated, `sent`: frames handed
    over. `past`: how many of its sequences, the first ones, are over.
    """

    id: StreamId
    request: StreamRequest
    intake: TextIntake
    sink: Callable[[StreamEvent], None]
    timing: StreamTiming
    watchdog: Watchdog
    demands: list[Demand] = field(default_factory=list)
    taken: int = 0
    frames: int = 0
    sent: int = 0
    packets: int = 0
    samples: int = 0
    past: int = 0
    leases: list[CodecLease] = field(default_factory=list)
    closed: bool = False

    @property
    def sequences(self) -> list[Sequence]:
        """All sequences known so far, in order."""
        return self.intake.sequences

    @property
    def demand(self) -> Demand:
        """The demand in force."""
        return self.demands[-1] if self.demands else self.request.demand

    def present(self) -> Iterator[Sequence]:
        """The sequences that are not over, in order."""
        return (self.sequences[number] for number in range(self.past, len(self.sequences)))

    def live(self, most: int) -> list[Sequence]:
        """The first sequences, `most` of them, that the talker still has to do with; the head comes first."""
        return list(itertools.islice((each for each in self.present() if not each.has_ended), most))

    @property
    def generation_over(self) -> bool:
        """True when no further frame will come."""
        return self.intake.ended and all(sequence.has_ended for sequence in self.present())

    def is_head(self, sequence: Sequence) -> bool:
        """True when all earlier sequences have ended."""
        return any(each is sequence for each in self.live(1))

    def wants_more(self) -> bool:
        """True while the client's demand reaches beyond what was generated."""
        return self.demand.wants(self.frames, self.taken, self.request.packets.size(self.packets))

    @property
    def hungry(self) -> bool:
        """False while the listener of a paced stream still has sound that he has not taken."""
        return self.demand.pace is not Pace.PACED or self.taken >= self.sent

    def slack_s(self, now_s: float) -> float:
        """Seconds until the listener runs dry; infinite where nobody listens live."""
        return float("inf") if self.demand.pace is Pace.BACKGROUND else self.timing.slack_s(now_s)

    def ready_frames(self) -> int:
        """Frames that can be decoded now, in order: those of the head and of what ended before it."""
        count = 0
        for sequence in self.present():
            count += len(sequence.undecoded)
            if not sequence.has_ended:
                break
        return count

    def keeps_coming(self) -> bool:
        """True while the next turn brings another frame, as far as one can tell."""
        return self.wants_more() and any(each.state is SequenceState.RUNNING for each in self.live(1))

    def take_window(self, haste: Haste) -> list[tuple[Frame, ...]]:
        """The frames of the next packets, removed; nothing while they are not full."""
        sizes = window_packets(
            self.request.packets,
            packets=self.packets,
            available=self.ready_frames(),
            ended=self.generation_over,
            haste=haste,
        )
        frames = self._take_frames(sum(sizes))
        return [tuple(itertools.islice(frames, size)) for size in sizes]

    def _take_frames(self, count: int) -> Iterator[Frame]:
        """The next frames in order, removed."""
        for sequence in self.present():
            while sequence.undecoded and count:
                count -= 1
                yield sequence.undecoded.popleft()

    def retire(self) -> None:
        """Finish the sequences that were decoded to their end, and pass over them from now on."""
        for sequence in self.present():
            if not sequence.has_ended:
                break
            if sequence.state is SequenceState.DRAINING and not sequence.undecoded:
                sequence.take(SequenceEvent.DRAINED)
        while self.past < len(self.sequences) and self.sequences[self.past].state in OVER:
            self.past += 1

    def finish_reason(self) -> FinishReason:
        """Why the stream ended: the first end that was not a proper one, else how its last sequence ended."""
        proper = (FinishReason.EOS, FinishReason.TRACK_END)
        reasons = [reason for sequence in self.sequences for reason in sequence.reasons]
        return next((reason for reason in reasons if reason not in proper), reasons[-1])

    def stop(self, event: SequenceEvent, reason: FinishReason) -> list[Sequence]:
        """Take `event` (cancel or fail) on everything that is not over; returns the sequences it hit."""
        hit = [sequence for sequence in self.present() if sequence.state not in OVER]
        for sequence in hit:
            sequence.take(event)
            sequence.undecoded.clear()
            sequence.reasons.append(reason)
        return hit
