"""Transition tables of the session state machines: one machine per utterance, one per session.

Pure values and two lookup functions. `session.py` holds the current states and drives them.
"""

# Why two machines
# ----------------
#
# An utterance has two ends that close independently: the client ends its *text*, the engine ends its *audio*. Usually
# the text ends first, but not always: the engine stops early when it reaches a frame limit, detects silence or samples
# the end of speech while the client is still writing. Four states are the combinations of "text open or closed" with
# "audio complete or not":
#
#                          audio is being generated    audio is complete
#     text may still come        WRITING          ->     ENDED_EARLY
#                                   |                         |
#                                   v                         v
#     text is complete          GENERATING        ->      GENERATED
#
# `END_TEXT` moves down, `LAST_PACKET` moves right. From the right column playback can reach the end (PLAYED). From any
# of the four the client can interrupt (INTERRUPTED), and from the left column the engine can fail (FAILED). These last
# three states are final: every utterance ends in exactly one of them, which is what lets the client rely on one
# definite outcome for each utterance.
#
# Events may still arrive in a final state. Client, server and engine run concurrently, so an event may have been under
# way when the utterance ended. The table accepts such an event where it is legitimate, and the state stays, with one
# exception:
#
# - PLAYED and FAILED accept text. The client does not know yet that the engine has ended the utterance. It still ends
#   the utterance with `END_TEXT` before it can open the next one.
# - FAILED becomes INTERRUPTED while the failure is not sent. It waits in the queue behind earlier utterances; an
#   interruption ends all of them with one report each.
# - INTERRUPTED accepts packets and failures. The engine applies a cancel at its next step, so packets may follow it.
#   It accepts no text: an interruption also closes the open utterance, so later text opens a new one.
#
# A session has its own, smaller machine. OPEN accepts everything. `CloseInput` moves it to CLOSING, where the remaining
# audio is still generated and sent but no text is accepted. CLOSING becomes CLOSED without an event, as soon as all
# audio is sent (`Session._close_if_drained`). `Disconnect` closes at once. CLOSED ignores what other tasks may still
# deliver.
#
# A pair that is missing from a table is a bug or a client error, and raises `StateError`. The default is not to ignore.

from __future__ import annotations

from enum import Enum

from legato.errors import StateError
from legato.session.events import (
    AddText,
    ClockTick,
    CloseInput,
    Disconnect,
    EndUtterance,
    Interrupt,
    PacketReceived,
    PlaybackAck,
    SessionEvent,
    StreamFailed,
)


class UtteranceState(Enum):
    """State of an utterance. The values are used in error messages."""

    WRITING = "being written"
    """The text is open, the audio is incomplete."""
    ENDED_EARLY = "ended early by the engine"
    """The text is open, the audio is complete. Further text is dropped."""
    GENERATING = "generating"
    """The text is complete, the audio is incomplete."""
    GENERATED = "generated"
    """Text and audio are complete; the audio is queued or playing."""
    PLAYED = "played"
    INTERRUPTED = "interrupted"
    FAILED = "failed"


class UtteranceEvent(Enum):
    """Input of the utterance state machine. The values are used in error messages."""

    TEXT = "text"
    END_TEXT = "end of text"
    PACKET = "packet"
    LAST_PACKET = "last packet"
    PLAYBACK_END = "end of playback"
    INTERRUPT = "interrupt"
    FAIL = "fail"


UTTERANCE_TRANSITIONS: dict[tuple[UtteranceState, UtteranceEvent], UtteranceState] = {
    (UtteranceState.WRITING, UtteranceEvent.TEXT): UtteranceState.WRITING,
    (UtteranceState.WRITING, UtteranceEvent.END_TEXT): UtteranceState.GENERATING,
    (UtteranceState.WRITING, UtteranceEvent.PACKET): UtteranceState.WRITING,
    (UtteranceState.WRITING, UtteranceEvent.LAST_PACKET): UtteranceState.ENDED_EARLY,
    (UtteranceState.WRITING, UtteranceEvent.INTERRUPT): UtteranceState.INTERRUPTED,
    (UtteranceState.WRITING, UtteranceEvent.FAIL): UtteranceState.FAILED,
    #
    (UtteranceState.ENDED_EARLY, UtteranceEvent.TEXT): UtteranceState.ENDED_EARLY,  # dropped
    (UtteranceState.ENDED_EARLY, UtteranceEvent.END_TEXT): UtteranceState.GENERATED,
    (UtteranceState.ENDED_EARLY, UtteranceEvent.PLAYBACK_END): UtteranceState.PLAYED,
    (UtteranceState.ENDED_EARLY, UtteranceEvent.INTERRUPT): UtteranceState.INTERRUPTED,
    #
    (UtteranceState.GENERATING, UtteranceEvent.PACKET): UtteranceState.GENERATING,
    (UtteranceState.GENERATING, UtteranceEvent.LAST_PACKET): UtteranceState.GENERATED,
    (UtteranceState.GENERATING, UtteranceEvent.INTERRUPT): UtteranceState.INTERRUPTED,
    (UtteranceState.GENERATING, UtteranceEvent.FAIL): UtteranceState.FAILED,
    #
    (UtteranceState.GENERATED, UtteranceEvent.PLAYBACK_END): UtteranceState.PLAYED,
    (UtteranceState.GENERATED, UtteranceEvent.INTERRUPT): UtteranceState.INTERRUPTED,
    # The client does not know yet that the utterance is over: its text is dropped.
    (UtteranceState.PLAYED, UtteranceEvent.TEXT): UtteranceState.PLAYED,
    (UtteranceState.PLAYED, UtteranceEvent.END_TEXT): UtteranceState.PLAYED,
    (UtteranceState.FAILED, UtteranceEvent.TEXT): UtteranceState.FAILED,
    (UtteranceState.FAILED, UtteranceEvent.END_TEXT): UtteranceState.FAILED,
    (UtteranceState.FAILED, UtteranceEvent.INTERRUPT): UtteranceState.INTERRUPTED,  # the failure is not sent yet
    # The engine has not applied the cancel yet: its packets are dropped.
    (UtteranceState.INTERRUPTED, UtteranceEvent.PACKET): UtteranceState.INTERRUPTED,
    (UtteranceState.INTERRUPTED, UtteranceEvent.LAST_PACKET): UtteranceState.INTERRUPTED,
    (UtteranceState.INTERRUPTED, UtteranceEvent.FAIL): UtteranceState.INTERRUPTED,
}
"""State and event -> next state. Missing pairs are errors."""


class SessionState(Enum):
    """State of a session. The values are used in error messages."""

    OPEN = "open"
    CLOSING = "closing"
    """The client sends no more text; remaining audio is generated and sent."""
    CLOSED = "closed"


SESSION_TRANSITIONS: dict[tuple[SessionState, type[SessionEvent]], SessionState] = {
    (SessionState.OPEN, AddText): SessionState.OPEN,
    (SessionState.OPEN, EndUtterance): SessionState.OPEN,
    (SessionState.OPEN, PacketReceived): SessionState.OPEN,
    (SessionState.OPEN, StreamFailed): SessionState.OPEN,
    (SessionState.OPEN, PlaybackAck): SessionState.OPEN,
    (SessionState.OPEN, Interrupt): SessionState.OPEN,
    (SessionState.OPEN, ClockTick): SessionState.OPEN,
    (SessionState.OPEN, CloseInput): SessionState.CLOSING,
    (SessionState.OPEN, Disconnect): SessionState.CLOSED,
    #
    (SessionState.CLOSING, PacketReceived): SessionState.CLOSING,
    (SessionState.CLOSING, StreamFailed): SessionState.CLOSING,
    (SessionState.CLOSING, PlaybackAck): SessionState.CLOSING,
    (SessionState.CLOSING, Interrupt): SessionState.CLOSING,
    (SessionState.CLOSING, ClockTick): SessionState.CLOSING,
    (SessionState.CLOSING, CloseInput): SessionState.CLOSING,
    (SessionState.CLOSING, Disconnect): SessionState.CLOSED,
    # Accepted without effect: they may have been under way when the session closed.
    (SessionState.CLOSED, PacketReceived): SessionState.CLOSED,
    (SessionState.CLOSED, StreamFailed): SessionState.CLOSED,
    (SessionState.CLOSED, PlaybackAck): SessionState.CLOSED,
    (SessionState.CLOSED, Interrupt): SessionState.CLOSED,
    (SessionState.CLOSED, ClockTick): SessionState.CLOSED,
    (SessionState.CLOSED, Disconnect): SessionState.CLOSED,
}
"""State and event type -> next state. Missing pairs are errors."""


def next_utterance_state(state: UtteranceState, event: UtteranceEvent) -> UtteranceState:
    """The next state of an utterance; `StateError` if the table has no such transition."""
    try:
        return UTTERANCE_TRANSITIONS[state, event]
    except KeyError:
        raise StateError(f"an utterance that is {state.value} cannot take the event {event.value!r}") from None


def next_session_state(state: SessionState, event: SessionEvent) -> SessionState:
    """The next state of a session; `StateError` if the table has no such transition."""
    try:
        return SESSION_TRANSITIONS[state, type(event)]
    except KeyError:
        raise StateError(f"a session that is {state.value} cannot take {type(event).__name__}") from None
