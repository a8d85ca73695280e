"""The states of an utterance and of a session, and the tables of their transitions. Pure values; owns nothing.

What is not in a table is a `StateError` naming state and event.
"""

from __future__ import annotations

from enum import Enum
from typing import get_args

from legato.errors import StateError
from legato.session.events import EndText, Finish, Leave, SessionEvent, Write


class UtteranceState(Enum):
    """Where an utterance is."""

    WRITING = "being written"
    """Text may come, audio may come."""
    CUT = "ended by the engine while it is written"
    """No more audio is made; text that still comes is dropped."""
    WRITTEN = "written"
    """All text is there; audio is made."""
    MADE = "made"
    """All audio is there; it waits or plays."""
    PLAYED = "played"
    INTERRUPTED = "interrupted"
    FAILED = "failed"


class UtteranceEvent(Enum):
    """What can happen to it."""

    TEXT = "text"
    END_TEXT = "end of text"
    PACKET = "packet"
    LAST_PACKET = "last packet"
    PLAYED_OUT = "played out"
    INTERRUPT = "interrupt"
    FAIL = "fail"


_U, _E = UtteranceState, UtteranceEvent

UTTERANCE_TRANSITIONS: dict[tuple[UtteranceState, UtteranceEvent], UtteranceState] = {
    (_U.WRITING, _E.TEXT): _U.WRITING,
    (_U.WRITING, _E.END_TEXT): _U.WRITTEN,
    (_U.WRITING, _E.PACKET): _U.WRITING,
    (_U.WRITING, _E.LAST_PACKET): _U.CUT,
    (_U.CUT, _E.TEXT): _U.CUT,
    (_U.CUT, _E.END_TEXT): _U.MADE,
    (_U.WRITTEN, _E.PACKET): _U.WRITTEN,
    (_U.WRITTEN, _E.LAST_PACKET): _U.MADE,
    (_U.MADE, _E.PLAYED_OUT): _U.PLAYED,
    (_U.CUT, _E.PLAYED_OUT): _U.PLAYED,
    (_U.PLAYED, _E.TEXT): _U.PLAYED,  # the engine's end came before the client's
    (_U.PLAYED, _E.END_TEXT): _U.PLAYED,
    **{(state, _E.INTERRUPT): _U.INTERRUPTED for state in (_U.WRITING, _U.CUT, _U.WRITTEN, _U.MADE)},
    **{(state, _E.FAIL): _U.FAILED for state in (_U.WRITING, _U.WRITTEN)},
    **{(_U.FAILED, event): _U.FAILED for event in (_E.TEXT, _E.END_TEXT)},  # the client may not know yet
    **{(_U.INTERRUPTED, event): _U.INTERRUPTED for event in (_E.PACKET, _E.LAST_PACKET, _E.FAIL)},  # late: dropped
}
"""What is not in this table is an error."""


class SessionState(Enum):
    """Where a session is."""

    OPEN = "open"
    CLOSING = "closing"
    """The client writes nothing more; what is there is sent."""
    CLOSED = "closed"


_S = SessionState
_KINDS: tuple[type[SessionEvent], ...] = get_args(SessionEvent)

SESSION_TRANSITIONS: dict[tuple[SessionState, type[SessionEvent]], SessionState] = {
    **{(_S.OPEN, kind): _S.OPEN for kind in _KINDS},
    **{(_S.CLOSING, kind): _S.CLOSING for kind in _KINDS if kind not in (Write, EndText)},
    **{(_S.CLOSED, kind): _S.CLOSED for kind in _KINDS if kind not in (Write, EndText, Finish)},
    (_S.OPEN, Finish): _S.CLOSING,
    (_S.OPEN, Leave): _S.CLOSED,
    (_S.CLOSING, Leave): _S.CLOSED,
}
"""What is not in this table is an error. A closed session lets late packets and clock ticks pass without effect."""


def next_utterance(state: UtteranceState, event: UtteranceEvent) -> UtteranceState:
    """The table looked up."""
    try:
        return UTTERANCE_TRANSITIONS[state, event]
    except KeyError:
        raise StateError(f"an utterance that is {state.value} cannot take the event {event.value!r}") from None


def next_session(state: SessionState, event: SessionEvent) -> SessionState:
    """The table looked up."""
    try:
        return SESSION_TRANSITIONS[state, type(event)]
    except KeyError:
        raise StateError(f"a session that is {state.value} cannot take {type(event).__name__}") from None
