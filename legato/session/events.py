"""Input events, engine actions and client outputs of a session, as immutable values.

An *utterance* is one piece of text and its audio. The session numbers its utterances from 0; the server maps each
number to an engine stream. Samples are counted at the model's sample rate, from the start of their utterance.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NewType

from legato.errors import LegatoError
from legato.types import FinishReason, Packet

UtteranceId = NewType("UtteranceId", int)
"""Index of an utterance in its session, from 0. Every packet carries one, whether it is sent or dropped."""

# --- input: from the client, the engine and the clock -----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AddText:
    """The client sends text. It is appended to the open utterance; if none is open, it opens one.

    `replaces`: first interrupt all utterances that are playing or queued.
    """

    text: str
    replaces: bool = False


@dataclass(frozen=True, slots=True)
class EndUtterance:
    """The text of the open utterance is complete."""


@dataclass(frozen=True, slots=True)
class PacketReceived:
    """The engine has generated the next packet of an utterance."""

    utterance_id: UtteranceId
    packet: Packet


@dataclass(frozen=True, slots=True)
class StreamFailed:
    """The engine stream of an utterance has failed."""

    utterance_id: UtteranceId
    error: LegatoError


@dataclass(frozen=True, slots=True)
class PlaybackAck:
    """The client has played the first `samples` samples of an utterance, and all earlier utterances completely."""

    utterance_id: UtteranceId
    samples: int


@dataclass(frozen=True, slots=True)
class Interrupt:
    """Barge-in: stop every utterance that is playing, queued or open.

    `played`: the play position as the client reports it; empty if it reports none.
    """

    played: tuple[PlaybackAck, ...] = ()


@dataclass(frozen=True, slots=True)
class ClockTick:
    """Time has passed; nothing else has happened."""


@dataclass(frozen=True, slots=True)
class CloseInput:
    """The client will send no more text. The session closes once all audio is sent."""


@dataclass(frozen=True, slots=True)
class Disconnect:
    """The client has disconnected."""


SessionEvent = (
    AddText
    | EndUtterance
    | PacketReceived
    | StreamFailed
    | PlaybackAck
    | Interrupt
    | ClockTick
    | CloseInput
    | Disconnect
)

# --- actions for the engine -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OpenStream:
    """Submit a stream for an utterance. It may run `ahead_frames` ahead of playback (see `SetAheadFrames`)."""

    utterance_id: UtteranceId
    ahead_frames: int


@dataclass(frozen=True, slots=True)
class FeedText:
    """Append text to the stream of an utterance."""

    utterance_id: UtteranceId
    text: str


@dataclass(frozen=True, slots=True)
class EndFeed:
    """The text of an utterance's stream is complete."""

    utterance_id: UtteranceId


@dataclass(frozen=True, slots=True)
class CancelStream:
    """Cancel the stream of an utterance."""

    utterance_id: UtteranceId


@dataclass(frozen=True, slots=True)
class SetAheadFrames:
    """Flow control: how far generation may run ahead of playback. 0 while an earlier utterance is still generating."""

    utterance_id: UtteranceId
    ahead_frames: int


@dataclass(frozen=True, slots=True)
class ConsumeFrames:
    """Flow control: the client has played `frames` more frames of an utterance."""

    utterance_id: UtteranceId
    frames: int


EngineAction = OpenStream | FeedText | EndFeed | CancelStream | SetAheadFrames | ConsumeFrames

# --- output: to the client --------------------------------------------------------------------------------------------


class PositionSource(Enum):
    """Where a play position comes from."""

    ACKNOWLEDGED = "acknowledged"
    """The client sent it with the interruption."""
    CLOCK = "clock"
    """The playback clock estimates it, from the last acknowledgement or else from the first packet sent."""


@dataclass(frozen=True, slots=True)
class AudioStart:
    """The first audio of an utterance follows."""

    utterance_id: UtteranceId


@dataclass(frozen=True, slots=True)
class AudioPacket:
    """The next audio of an utterance."""

    utterance_id: UtteranceId
    packet: Packet


@dataclass(frozen=True, slots=True)
class AudioEnd:
    """All audio of an utterance has been sent, `samples` in total."""

    utterance_id: UtteranceId
    samples: int
    reason: FinishReason


@dataclass(frozen=True, slots=True)
class PlaybackFinished:
    """The client has played an utterance to its end. `underrun_s`: total time it paused because audio came late."""

    utterance_id: UtteranceId
    samples: int
    underrun_s: float


@dataclass(frozen=True, slots=True)
class InterruptionReport:
    """How far an interrupted utterance had come: samples generated, sent and played.

    `fully_generated`: the engine had generated all of its audio.
    """

    utterance_id: UtteranceId
    generated_samples: int
    sent_samples: int
    played_samples: int
    position_source: PositionSource
    fully_generated: bool


@dataclass(frozen=True, slots=True)
class Cancelled:
    """The answer to an interruption: one report for each utterance that was stopped; empty if there was none."""

    reports: tuple[InterruptionReport, ...]


@dataclass(frozen=True, slots=True)
class UtteranceFailed:
    """An utterance has failed. Its audio that was not sent yet is dropped. Sent in the order of the utterances."""

    utterance_id: UtteranceId
    error: LegatoError


@dataclass(frozen=True, slots=True)
class SessionClosed:
    """The session is closed. This is its last output."""


SessionOutput = AudioStart | AudioPacket | AudioEnd | PlaybackFinished | Cancelled | UtteranceFailed | SessionClosed
