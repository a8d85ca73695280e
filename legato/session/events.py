"""What can happen to a session, what it asks the engine for, and what it has for its client. Values only.

An *utterance* is one stream as a session sees it: the session numbers it, the connection knows which engine stream
speaks it. Samples are counted at the model's rate from the start of their utterance. Knows no socket and no engine.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NewType

from legato.errors import LegatoError
from legato.flow import FinishReason, Packet

UtteranceId = NewType("UtteranceId", int)
"""Place of an utterance in its session, from 0. Every packet, sent or dropped, carries one."""

# --- what happens ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Write:
    """The client wrote text. It goes to the utterance that is open, or opens one.

    `replaces`: stop all that plays or waits, and speak this instead.
    """

    text: str
    replaces: bool = False


@dataclass(frozen=True, slots=True)
class EndText:
    """The open utterance has all its text."""


@dataclass(frozen=True, slots=True)
class PacketCame:
    """The engine made the next packet of an utterance."""

    utterance: UtteranceId
    packet: Packet


@dataclass(frozen=True, slots=True)
class StreamFailed:
    """The engine ended an utterance with an error."""

    utterance: UtteranceId
    error: LegatoError


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """The client's device has played the first `samples` samples of an utterance, and all of those before it."""

    utterance: UtteranceId
    samples: int


@dataclass(frozen=True, slots=True)
class Interrupt:
    """Barge-in: stop everything that plays, waits or is being written. `played`: what the client knows about it."""

    played: tuple[Acknowledged, ...] = ()


@dataclass(frozen=True, slots=True)
class TimePassed:
    """Nothing but the clock moved on."""


@dataclass(frozen=True, slots=True)
class Finish:
    """The client will write nothing more: send what is there, then close."""


@dataclass(frozen=True, slots=True)
class Leave:
    """The client is gone."""


SessionEvent = Write | EndText | PacketCame | StreamFailed | Acknowledged | Interrupt | TimePassed | Finish | Leave

# --- what the session asks the engine for ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OpenStream:
    """Submit a stream for this utterance, which may run `ahead_frames` ahead of what is taken until told otherwise."""

    utterance: UtteranceId
    ahead_frames: int


@dataclass(frozen=True, slots=True)
class FeedText:
    """Text for the stream of an utterance."""

    utterance: UtteranceId
    text: str


@dataclass(frozen=True, slots=True)
class EndFeed:
    """The stream of an utterance has all its text."""

    utterance: UtteranceId


@dataclass(frozen=True, slots=True)
class CancelStream:
    """Stop the stream of an utterance."""

    utterance: UtteranceId


@dataclass(frozen=True, slots=True)
class SetDemand:
    """How far the stream of an utterance may run ahead of what is taken: 0 while earlier ones are still made."""

    utterance: UtteranceId
    ahead_frames: int


@dataclass(frozen=True, slots=True)
class TakeFrames:
    """The ear has taken `frames` more frames of an utterance."""

    utterance: UtteranceId
    frames: int


EngineAction = OpenStream | FeedText | EndFeed | CancelStream | SetDemand | TakeFrames

# --- what the session has for its client -----------------------------------------------------------------------------


class PlayedBy(Enum):
    """How it is known what was played."""

    ACKNOWLEDGED = "acknowledged"
    """The client said so, with the interruption."""
    CLOCK = "clock"
    """A clock says so, from the last acknowledgement or else from the first packet sent."""


@dataclass(frozen=True, slots=True)
class Begins:
    """The first audio of an utterance follows."""

    utterance: UtteranceId


@dataclass(frozen=True, slots=True)
class Audio:
    """A packet to be heard."""

    utterance: UtteranceId
    packet: Packet


@dataclass(frozen=True, slots=True)
class Ends:
    """All audio of an utterance was sent: `samples` of them."""

    utterance: UtteranceId
    samples: int
    reason: FinishReason


@dataclass(frozen=True, slots=True)
class Played:
    """An utterance was heard to its end. `underrun_s`: how long it stood still in its midst for want of audio."""

    utterance: UtteranceId
    samples: int
    underrun_s: float


@dataclass(frozen=True, slots=True)
class Interrupted:
    """One utterance that was stopped: what the engine had made, what was sent, what was played."""

    utterance: UtteranceId
    made_samples: int
    sent_samples: int
    played_samples: int
    played_by: PlayedBy
    made_whole: bool


@dataclass(frozen=True, slots=True)
class Stopped:
    """The answer to an interruption; empty where nothing was left to stop."""

    utterances: tuple[Interrupted, ...]


@dataclass(frozen=True, slots=True)
class Failed:
    """An utterance ended with an error; what of it was not sent is dropped."""

    utterance: UtteranceId
    error: LegatoError


@dataclass(frozen=True, slots=True)
class Closed:
    """The session is over."""


Outgoing = Begins | Audio | Ends | Played | Stopped | Failed | Closed
