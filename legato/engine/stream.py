"""Stream: one continuous waveform, with its request, its state, and the commands and events of its client.

A stream lives from submission until its last packet or its error is delivered. Only the engine thread changes it.
Clients send `Command` values and receive `StreamEvent` values.

Data flow inside a stream
-------------------------
    text -> TextIntake -> sequences -> frames -> windows -> packets

The intake cuts the text into segments and creates one `Sequence` for each. Segments are generated strictly in order:
only the *head*, the first sequence that has not ended, adds frames. Decoding follows the same order and crosses
segment borders, because all segments share one codec history. `ready_frames` therefore counts the frames of the head
and of the sequences before it. A sequence that was prefilled ahead has no frames.

Three positions in the list of sequences, always in this order:

    first_active  first sequence that is not terminal (has frames to decode, or is generating)
    head          first sequence that still generates
    head + 1      may be prefilled ahead

Frame counters: `frames` (generated) >= `sent` (delivered in packets) >= `consumed` (reported by the client). Flow
control limits `frames - consumed`.

The stream ends in one of three ways: all sequences end and the last frame is delivered (the last packet has the finish
reason), the client cancels (an empty last packet follows), or an error is delivered as the last event. Then `closed`
is set, and the registry releases the codec slot.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from legato.engine.flow_control import UNLIMITED, FlowControl, FlowMode
from legato.engine.idleness import Idleness
from legato.engine.leases import CodecLease
from legato.engine.packetizer import PacketPolicy, WindowMode, window_packets
from legato.engine.sequence import TERMINAL, Sequence, SequenceEvent, SequenceState
from legato.engine.stats import StreamTiming
from legato.engine.text_intake import TextIntake
from legato.errors import LegatoError
from legato.models.codec.state import CodecHistory
from legato.models.voice import ClonedVoice
from legato.text.budget import Watchdog
from legato.types import REGULAR_ENDS, FinishReason, Frame, Packet, PromptSpec, SamplingParams, StreamId

StreamEvent = Packet | LegatoError
"""Output of a stream: packets, or one error as the last event."""


@dataclass(frozen=True, slots=True)
class StreamRequest:
    """Parameters of a stream that are known before its text arrives.

    `max_frames`: frame limit of the whole stream; 0 computes it from the text. `voice`: the cloned voice, None for a
    built-in or designed voice. `flow_control`: the initial setting.
    """

    spec: PromptSpec
    sampling: SamplingParams
    seed: int
    packets: PacketPolicy
    max_frames: int = 0
    voice: ClonedVoice | None = None
    flow_control: FlowControl = UNLIMITED
    speed: float = 1.0


@dataclass(slots=True)
class Stream:
    """State of one stream in the engine.

    `on_event` receives packets and errors on the engine thread. `frames`, `sent`, `consumed`: frames generated,
    delivered, and reported as consumed. `packets`, `samples`: delivered so far. `first_active`: number of the first
    sequence that is not terminal. `codec_lease`: None before admission, while parked and after the end. `idleness`: how
    long the stream has been unable to use its slots. `parked_history`: the codec history of a parked stream, and
    `parked_bytes` the size of all its copies.
    """

    id: StreamId
    request: StreamRequest
    intake: TextIntake
    on_event: Callable[[StreamEvent], None]
    timing: StreamTiming
    watchdog: Watchdog
    flow_control: FlowControl = field(init=False)
    consumed: int = 0
    frames: int = 0
    sent: int = 0
    packets: int = 0
    samples: int = 0
    first_active: int = 0
    codec_lease: CodecLease | None = None
    idleness: Idleness = field(default_factory=Idleness)
    parked_history: CodecHistory | None = None
    parked_bytes: int = 0
    closed: bool = False

    def __post_init__(self) -> None:
        self.flow_control = self.request.flow_control

    @property
    def sequences(self) -> list[Sequence]:
        """All sequences so far, in order."""
        return self.intake.sequences

    def active(self) -> Iterator[Sequence]:
        """Sequences that are not terminal, in order."""
        return (self.sequences[number] for number in range(self.first_active, len(self.sequences)))

    def generating(self) -> Iterator[Sequence]:
        """Sequences that will generate more frames, in order; the first is the head."""
        return (sequence for sequence in self.active() if not sequence.has_ended)

    def head(self) -> Sequence | None:
        """The sequence that is currently generating; None if all sequences so far have ended."""
        return next(self.generating(), None)

    @property
    def generation_over(self) -> bool:
        """True when no more frames will be generated."""
        return self.intake.ended and all(sequence.has_ended for sequence in self.active())

    def may_generate(self) -> bool:
        """Whether flow control allows another frame."""
        return self.flow_control.allows(self.frames, self.consumed, self.request.packets.size(self.packets))

    def may_resume(self) -> bool:
        """Whether a parked stream may take a slot again: once its client has taken half of what it may have ahead.

        With every frame that the client takes, the stream could generate one. It would hold a slot all the time.
        """
        control, packet = self.flow_control, self.request.packets.size(self.packets)
        half = max(control.ahead_frames, packet) // 2
        return self.may_generate() and control.allows(self.frames + half, self.consumed, packet)

    @property
    def client_waiting(self) -> bool:
        """False while a paced client still has delivered frames that it has not consumed."""
        return self.flow_control.mode is not FlowMode.PACED or self.consumed >= self.sent

    def slack_s(self, now_s: float) -> float:
        """Seconds until the client's buffer is empty; infinite for background streams, negative after an underrun."""
        return float("inf") if self.flow_control.mode is FlowMode.BACKGROUND else self.timing.slack_s(now_s)

    def ready_frames(self) -> int:
        """Frames that can be decoded now, in order."""
        count = 0
        for sequence in self.active():
            count += len(sequence.undecoded)
            if not sequence.has_ended:
                break
        return count

    def next_step_adds_frame(self) -> bool:
        """True if the next step is expected to generate a frame."""
        head = self.head()
        return head is not None and head.state is SequenceState.RUNNING and self.may_generate()

    def pop_window(self, mode: WindowMode, first_frames: int = 0) -> list[tuple[Frame, ...]]:
        """Remove and return the frames of the next packets; empty while no packet is complete.

        `first_frames`: see `window_packets`.
        """
        sizes = window_packets(
            self.request.packets,
            packets=self.packets,
            available=self.ready_frames(),
            ended=self.generation_over,
            mode=mode,
            first_frames=first_frames,
        )
        frames = self._pop_frames(sum(sizes))
        return [tuple(itertools.islice(frames, size)) for size in sizes]

    def _pop_frames(self, count: int) -> Iterator[Frame]:
        for sequence in self.active():
            while sequence.undecoded and count:
                count -= 1
                yield sequence.undecoded.popleft()

    def retire_sequences(self) -> None:
        """Finish sequences whose frames are all decoded, and advance `first_active` past them."""
        for sequence in self.active():
            if not sequence.has_ended:
                break
            if sequence.state is SequenceState.DRAINING and not sequence.undecoded:
                sequence.apply(SequenceEvent.DRAINED)
        while self.first_active < len(self.sequences) and self.sequences[self.first_active].state in TERMINAL:
            self.first_active += 1

    def finish_reason(self) -> FinishReason:
        """The first reason that is not a regular end (EOS, TRACK_END), else the reason of the last sequence."""
        reasons = [each.finish_reason for each in self.sequences if each.finish_reason is not None]
        return next((reason for reason in reasons if reason not in REGULAR_ENDS), reasons[-1])

    def stop(self, event: SequenceEvent, reason: FinishReason) -> list[Sequence]:
        """Apply `event` (CANCEL or FAIL) to every sequence that is not terminal, drop its frames, and return them."""
        stopped = [sequence for sequence in self.active() if sequence.state not in TERMINAL]
        for sequence in stopped:
            sequence.apply(event)
            sequence.undecoded.clear()
            sequence.finish_reason = reason
        return stopped


# --- commands --------------------------------------------------------------------------------------------------------
# Immutable values that clients put into the engine's queue from any thread.


@dataclass(frozen=True, slots=True)
class Submit:
    """Add a stream. `received_s`: time at which the request arrived, on the engine's clock."""

    stream: Stream
    received_s: float


@dataclass(frozen=True, slots=True)
class AppendText:
    """Append text. It may be cut at any character."""

    stream: StreamId
    text: str


@dataclass(frozen=True, slots=True)
class EndText:
    """Mark the end of the text."""

    stream: StreamId


@dataclass(frozen=True, slots=True)
class Cancel:
    """Stop generating and decoding immediately."""

    stream: StreamId


@dataclass(frozen=True, slots=True)
class SetFlowControl:
    """Replace the flow control. `consumed`: frames that the client has consumed so far."""

    stream: StreamId
    flow_control: FlowControl
    consumed: int


@dataclass(frozen=True, slots=True)
class Consumed:
    """Report that the client has consumed `frames` frames in total."""

    stream: StreamId
    frames: int


@dataclass(frozen=True, slots=True)
class Drain:
    """Engine shutdown: finish the text received so far without flow control, and ignore later text."""

    stream: StreamId


StreamCommand = AppendText | EndText | Cancel | SetFlowControl | Consumed | Drain
Command = Submit | StreamCommand
