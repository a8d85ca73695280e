"""One client's session as a pure machine: events in, actions for the engine and items for the client out.

Owns the order of utterances and who may still write to the last one, from connect to disconnect. The tables in
`states.py` hold every transition. The clock is an argument. It does no I/O and knows no engine: the connection carries
its actions out, and sends what `pull` gives when the socket takes it.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable

from legato.errors import LegatoError, StateError
from legato.flow import Packet
from legato.session.events import (
    Acknowledged,
    Audio,
    CancelStream,
    Closed,
    EndFeed,
    EndText,
    EngineAction,
    Failed,
    FeedText,
    Finish,
    Interrupt,
    Interrupted,
    Leave,
    OpenStream,
    Outgoing,
    PacketCame,
    Played,
    PlayedBy,
    SessionEvent,
    SetDemand,
    Stopped,
    StreamFailed,
    TakeFrames,
    UtteranceId,
    Write,
)
from legato.session.playback import Playback, PlaybackLimits, Track
from legato.session.states import SessionState, UtteranceEvent, UtteranceState, next_session, next_utterance

DEMAND_PERIOD_S = 0.1
"""How often a stream that waits for the ear is allowed more."""


class Session:
    """The machine. `clock` gives seconds that never go back."""

    def __init__(self, limits: PlaybackLimits, clock: Callable[[], float]) -> None:
        self.state = SessionState.OPEN
        self._clock = clock
        self._playback = Playback(limits, clock())
        self._states: dict[UtteranceId, UtteranceState] = {}
        self._next = 0
        self._open: list[UtteranceId] = []
        self._ahead: dict[UtteranceId, int] = {}
        self._taken: dict[UtteranceId, int] = {}
        self._notices: deque[Outgoing] = deque()

    # --- what the connection calls ------------------------------------------------------------------------------------

    def take(self, event: SessionEvent) -> list[EngineAction]:
        """Take what happened; returns what to ask of the engine, in order."""
        target = next_session(self.state, event)
        self._advance()
        closed = self.state is SessionState.CLOSED
        actions = [] if closed else self._act(event)
        self.state = target
        self._settle()
        return actions + self._demands()

    def pull(self) -> list[Outgoing]:
        """The next item for the client: one, or none while there is none or it is too early (`wake_s`)."""
        self._advance()
        self._settle()
        if self._notices:
            return [self._notices.popleft()]
        return [*self._playback.pull()]

    def wake_s(self) -> float:
        """When `take(TimePassed())` and `pull` are next due at the latest; infinity while only events matter."""
        if self.state is SessionState.CLOSED:
            return math.inf
        waiting = any(not track.made_whole for track in self._playback.tracks) and self._playback.unheard_samples
        limited = self._clock() + DEMAND_PERIOD_S if waiting else math.inf
        return min(self._playback.wake_s(), limited)

    def limit(self, limits: PlaybackLimits) -> None:
        """Other limits from now on."""
        self._playback.limits = limits

    @property
    def open_utterance(self) -> list[UtteranceId]:
        """The utterance that takes text: one or none."""
        return list(self._open)

    @property
    def idle(self) -> bool:
        """True when nothing is written, made or heard."""
        return not self._open and not self._playback.tracks

    @property
    def silent(self) -> bool:
        """True when nothing is heard and nothing is made, but what waits for its client's text."""
        return not self._playback.unheard_samples and all(
            track.made_whole or self._states[track.utterance] is UtteranceState.WRITING
            for track in self._playback.tracks
        )

    def state_of(self, utterance: UtteranceId) -> UtteranceState:
        """Where an utterance is; the ones that are over stay known."""
        return self._states[utterance]

    # --- events -------------------------------------------------------------------------------------------------------

    def _act(self, event: SessionEvent) -> list[EngineAction]:
        match event:
            case Write():
                return self._write(event)
            case EndText():
                return self._end_text()
            case PacketCame(utterance=utterance, packet=packet):
                self._packet(utterance, packet)
            case StreamFailed(utterance=utterance, error=error):
                self._fail(utterance, error)
            case Acknowledged(utterance=utterance, samples=samples):
                self._check(utterance)
                self._playback.acknowledge(utterance, samples)
                self._advance()
            case Interrupt(played=played):
                return self._interrupt(played)
            case Finish():
                return self._end_text() if self._open else []
            case Leave():
                return self._leave()
        return []

    def _write(self, event: Write) -> list[EngineAction]:
        actions = self._interrupt(()) if event.replaces else []
        if not self._open:
            utterance = UtteranceId(self._next)
            self._next += 1
            self._states[utterance] = UtteranceState.WRITING
            self._open = [utterance]
            self._playback.open(utterance)
            self._ahead[utterance], self._taken[utterance] = self._playback.ahead_frames(utterance), 0
            actions.append(OpenStream(utterance, self._ahead[utterance]))
        utterance = self._open[0]
        if self._move(utterance, UtteranceEvent.TEXT) is UtteranceState.WRITING:
            actions.append(FeedText(utterance, event.text))
        return actions

    def _end_text(self) -> list[EngineAction]:
        if not self._open:
            raise StateError("no utterance is open: there is no text to end")
        utterance = self._open.pop()
        written = self._move(utterance, UtteranceEvent.END_TEXT) is UtteranceState.WRITTEN
        return [EndFeed(utterance)] if written else []

    def _packet(self, utterance: UtteranceId, packet: Packet) -> None:
        self._check(utterance)
        state = self._move(utterance, UtteranceEvent.LAST_PACKET if packet.last else UtteranceEvent.PACKET)
        if state is not UtteranceState.INTERRUPTED:
            self._playback.put(Audio(utterance, packet))

    def _fail(self, utterance: UtteranceId, error: LegatoError) -> None:
        self._check(utterance)
        if self._move(utterance, UtteranceEvent.FAIL) is UtteranceState.FAILED:
            self._playback.drop(utterance)
            self._forget(utterance)
            self._notices.append(Failed(utterance, error))

    def _interrupt(self, played: tuple[Acknowledged, ...]) -> list[EngineAction]:
        for word in played:
            self._check(word.utterance)
            self._playback.acknowledge(word.utterance, word.samples)
        self._advance()
        acknowledged = {word.utterance for word in played}
        actions: list[EngineAction] = []
        reports: list[Interrupted] = []
        for track in self._playback.clear():
            made_whole = self._states[track.utterance] in (UtteranceState.MADE, UtteranceState.CUT)
            self._move(track.utterance, UtteranceEvent.INTERRUPT)
            self._forget(track.utterance)
            if not made_whole:
                actions.append(CancelStream(track.utterance))
            reports.append(_report(track, track.utterance in acknowledged))
        self._open.clear()
        self._notices.append(Stopped(tuple(reports)))
        return actions

    def _leave(self) -> list[EngineAction]:
        gone = self._playback.clear()
        for track in gone:
            self._move(track.utterance, UtteranceEvent.INTERRUPT)
            self._forget(track.utterance)
        self._open.clear()
        self._notices.clear()
        return [CancelStream(track.utterance) for track in gone if not track.made_whole]

    # --- time ---------------------------------------------------------------------------------------------------------

    def _advance(self) -> None:
        """Let the device play until now, and tell what was heard to its end."""
        if self.state is SessionState.CLOSED:
            return
        for track in self._playback.advance(self._clock()):
            self._move(track.utterance, UtteranceEvent.PLAYED_OUT)
            self._forget(track.utterance)
            self._notices.append(Played(track.utterance, track.played, track.underrun_s))

    def _settle(self) -> None:
        """Close a closing session that has nothing left to send; what is on its way is the client's to play."""
        sent = all(track.sent_whole and not track.items for track in self._playback.tracks)
        if self.state is SessionState.CLOSING and sent and not self._open:
            self.state = SessionState.CLOSED
            self._notices.append(Closed())

    def _demands(self) -> list[EngineAction]:
        """What has changed in how far each stream may run."""
        actions: list[EngineAction] = []
        for track in self._playback.tracks:
            if track.made_whole:
                continue
            utterance = track.utterance
            ahead = self._playback.ahead_frames(utterance)
            if ahead > self._ahead[utterance]:
                self._ahead[utterance] = ahead
                actions.append(SetDemand(utterance, ahead))
            taken = track.played // self._playback.limits.frame_samples
            if taken > self._taken[utterance]:
                actions.append(TakeFrames(utterance, taken - self._taken[utterance]))
                self._taken[utterance] = taken
        return actions

    def _forget(self, utterance: UtteranceId) -> None:
        del self._ahead[utterance], self._taken[utterance]

    # --- the table ----------------------------------------------------------------------------------------------------

    def _check(self, utterance: UtteranceId) -> None:
        if utterance not in self._states:
            raise StateError(f"there is no utterance {utterance}; {self._next} were begun")

    def _move(self, utterance: UtteranceId, event: UtteranceEvent) -> UtteranceState:
        self._states[utterance] = next_utterance(self._states[utterance], event)
        return self._states[utterance]


def _report(track: Track, acknowledged: bool) -> Interrupted:
    return Interrupted(
        utterance=track.utterance,
        made_samples=track.made,
        sent_samples=track.sent,
        played_samples=track.played,
        played_by=PlayedBy.ACKNOWLEDGED if acknowledged else PlayedBy.CLOCK,
        made_whole=track.made_whole,
    )
