"""Session state machine of one client (sans-I/O): takes events, returns engine actions and client outputs.

A `Session` owns the states of its utterances and their playback, from connect to disconnect. Transitions are in
`states.py`. It does no I/O and the clock is an argument: the server executes its actions and sends its outputs.
"""

# How a server drives it
# ----------------------
#
# Input is pushed, output is pulled. `handle` takes one event and returns actions, which must be executed at once and in
# order. `next_output` returns the next output for the client, and is called only when the socket can take it: an output
# counts as sent from then on, and the playback clock starts from it. When it returns None, the server waits for the
# next event or until `next_wake_s`, whichever is first, and then passes a `ClockTick`.
#
# Flow control has two parts, because the engine has many sessions and limits each stream on its own:
#
# - `SetAheadFrames` is the size of a stream's window: how far generation may run ahead of playback. It is 0 while an
#   earlier utterance is being generated. It only grows: the engine may already have used what it was granted.
# - `ConsumeFrames` moves the window: frames of this stream that the client has played.

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable

from legato.errors import LegatoError, StateError
from legato.session.events import (
    AddText,
    AudioPacket,
    Cancelled,
    CancelStream,
    CloseInput,
    ConsumeFrames,
    Disconnect,
    EndFeed,
    EndUtterance,
    EngineAction,
    FeedText,
    Interrupt,
    InterruptionReport,
    OpenStream,
    PacketReceived,
    PlaybackAck,
    PlaybackFinished,
    PositionSource,
    SessionClosed,
    SessionEvent,
    SessionOutput,
    SetAheadFrames,
    StreamFailed,
    UtteranceFailed,
    UtteranceId,
)
from legato.session.playback import Playback, PlaybackLimits, QueuedUtterance
from legato.session.states import (
    SessionState,
    UtteranceEvent,
    UtteranceState,
    next_session_state,
    next_utterance_state,
)
from legato.types import Packet

FLOW_CONTROL_PERIOD_S = 0.1
"""How often flow control is updated while a stream waits for playback. Slow enough to cost nothing."""


class Session:
    """One client's session. `clock` returns monotonic seconds."""

    def __init__(self, limits: PlaybackLimits, clock: Callable[[], float]) -> None:
        self.state = SessionState.OPEN
        self._clock = clock
        self._event_s = clock()
        """Time of the event that is being processed."""
        self._playback = Playback(limits, self._event_s)
        self._states: dict[UtteranceId, UtteranceState] = {}
        """All utterances of the session. Those that are over stay, so that late events find their final state."""
        self._open_utterance: UtteranceId | None = None
        self._granted_frames: dict[UtteranceId, int] = {}
        """Flow control sent to the engine: the window of each queued utterance, ..."""
        self._consumed_frames: dict[UtteranceId, int] = {}
        """... and the frames that were reported as played."""
        self._urgent: deque[SessionOutput] = deque()
        """Outputs that are not audio. They are sent before any queued audio, so that a client that was interrupted
        learns of it before new audio arrives."""

    # --- interface ----------------------------------------------------------------------------------------------------

    def handle(self, event: SessionEvent) -> list[EngineAction]:
        """Process one event; returns the actions for the engine, in order. An event that raises changes no state."""
        next_state = next_session_state(self.state, event)
        self._event_s = self._clock()
        self._advance(self._event_s)
        actions = [] if self.state is SessionState.CLOSED else self._dispatch(event)
        self.state = next_state  # assigned last, because `_dispatch` may raise
        self._close_if_drained()
        return actions + self._flow_control()

    def next_output(self) -> SessionOutput | None:
        """The next output for the client, counted as sent. None if none is due before `next_wake_s`."""
        self._advance(self._clock())
        self._close_if_drained()
        if self._urgent:
            return self._urgent.popleft()
        output = self._playback.next_output()
        if isinstance(output, UtteranceFailed):
            self._end_flow_control(output.utterance_id)
        return output

    def next_wake_s(self) -> float:
        """The latest time at which `ClockTick` and `next_output` are due; infinity if only events change anything."""
        if self.state is SessionState.CLOSED:
            return math.inf
        wake_s = self._playback.next_wake_s()
        generating = any(not entry.fully_generated for entry in self._playback.queue)
        if generating and self._playback.unplayed_samples:
            wake_s = min(wake_s, self._clock() + FLOW_CONTROL_PERIOD_S)
        return wake_s

    def set_limits(self, limits: PlaybackLimits) -> None:
        """Replace the playback limits."""
        self._playback.limits = limits

    @property
    def open_utterance(self) -> UtteranceId | None:
        """The utterance that takes text."""
        return self._open_utterance

    @property
    def idle(self) -> bool:
        """True if no utterance is open, queued or playing."""
        return self._open_utterance is None and not self._playback.queue

    @property
    def waiting_for_client(self) -> bool:
        """True if nothing is playing, and nothing is being generated except utterances that wait for more text."""
        return not self._playback.unplayed_samples and all(
            entry.fully_generated or self._states[entry.utterance_id] is UtteranceState.WRITING
            for entry in self._playback.queue
        )

    def state_of(self, utterance_id: UtteranceId) -> UtteranceState:
        """State of an utterance, also after it is over."""
        return self._states[utterance_id]

    # --- events -------------------------------------------------------------------------------------------------------

    def _dispatch(self, event: SessionEvent) -> list[EngineAction]:
        match event:
            case AddText():
                return self._add_text(event)
            case EndUtterance():
                return self._end_utterance()
            case PacketReceived(utterance_id=utterance_id, packet=packet):
                self._receive(utterance_id, packet)
            case StreamFailed(utterance_id=utterance_id, error=error):
                self._fail(utterance_id, error)
            case PlaybackAck():
                self._acknowledge(event)
                self._advance(self._event_s)
            case Interrupt(played=played):
                return self._interrupt(played)
            case CloseInput():
                return [] if self._open_utterance is None else self._end_utterance()
            case Disconnect():
                return self._disconnect()
        return []

    def _add_text(self, event: AddText) -> list[EngineAction]:
        actions = self._interrupt(()) if event.replaces else []
        utterance_id = self._open_utterance
        if utterance_id is None:
            utterance_id = UtteranceId(len(self._states))
            self._open_utterance = utterance_id
            self._states[utterance_id] = UtteranceState.WRITING
            self._playback.append_utterance(utterance_id)
            self._granted_frames[utterance_id] = self._playback.ahead_frames(utterance_id)
            self._consumed_frames[utterance_id] = 0
            actions.append(OpenStream(utterance_id, self._granted_frames[utterance_id]))
        # In every other state the engine has ended the stream already, and the text is dropped.
        if self._transition(utterance_id, UtteranceEvent.TEXT) is UtteranceState.WRITING:
            actions.append(FeedText(utterance_id, event.text))
        return actions

    def _end_utterance(self) -> list[EngineAction]:
        if self._open_utterance is None:
            raise StateError("no utterance is open: there is no text to end")
        utterance_id, self._open_utterance = self._open_utterance, None
        state = self._transition(utterance_id, UtteranceEvent.END_TEXT)
        return [EndFeed(utterance_id)] if state is UtteranceState.GENERATING else []

    def _receive(self, utterance_id: UtteranceId, packet: Packet) -> None:
        self._check_known(utterance_id)
        event = UtteranceEvent.LAST_PACKET if packet.last else UtteranceEvent.PACKET
        # An interrupted utterance has left the queue; the engine generated this packet before it applied the cancel.
        if self._transition(utterance_id, event) is not UtteranceState.INTERRUPTED:
            self._playback.append_packet(AudioPacket(utterance_id, packet))

    def _fail(self, utterance_id: UtteranceId, error: LegatoError) -> None:
        self._check_known(utterance_id)
        if self._transition(utterance_id, UtteranceEvent.FAIL) is UtteranceState.FAILED:
            self._playback.fail(utterance_id, error)

    def _acknowledge(self, ack: PlaybackAck) -> None:
        self._check_known(ack.utterance_id)
        self._playback.acknowledge(ack.utterance_id, ack.samples)

    def _interrupt(self, played: tuple[PlaybackAck, ...]) -> list[EngineAction]:
        for ack in played:
            self._acknowledge(ack)
        # An utterance that the client has just acknowledged to its end is finished, not interrupted. The clock is not
        # read again: the report contains exactly the acknowledged position.
        self._advance(self._event_s)
        acknowledged = {ack.utterance_id for ack in played}
        removed = self._remove_all()
        reports = tuple(_report(entry, entry.utterance_id in acknowledged) for entry in removed)
        self._urgent.append(Cancelled(reports))
        return _cancel_streams(removed)

    def _disconnect(self) -> list[EngineAction]:
        removed = self._remove_all()
        self._urgent.clear()
        return _cancel_streams(removed)

    def _remove_all(self) -> list[QueuedUtterance]:
        """Interrupt every utterance; returns them as they were."""
        removed = self._playback.clear()
        for entry in removed:
            self._transition(entry.utterance_id, UtteranceEvent.INTERRUPT)
            self._end_flow_control(entry.utterance_id)
        self._open_utterance = None
        return removed

    # --- time ---------------------------------------------------------------------------------------------------------

    def _advance(self, now_s: float) -> None:
        """Advance the playback clock, and finish the utterances that were played to their end."""
        if self.state is SessionState.CLOSED:
            return
        for entry in self._playback.advance(now_s):
            self._transition(entry.utterance_id, UtteranceEvent.PLAYBACK_END)
            self._end_flow_control(entry.utterance_id)
            self._urgent.append(PlaybackFinished(entry.utterance_id, entry.played, entry.underrun_s))

    def _close_if_drained(self) -> None:
        """Close a closing session as soon as all audio is sent. The client may still be playing it."""
        drained = all(entry.fully_sent and not entry.unsent for entry in self._playback.queue)
        if self.state is SessionState.CLOSING and drained and self._open_utterance is None:
            self.state = SessionState.CLOSED
            self._urgent.append(SessionClosed())

    def _flow_control(self) -> list[EngineAction]:
        """Flow-control actions for everything that changed since the previous call."""
        actions: list[EngineAction] = []
        frame_samples = self._playback.limits.frame_samples
        for entry in self._playback.queue:
            if entry.fully_generated:
                continue  # its stream is over
            utterance_id = entry.utterance_id
            ahead_frames = self._playback.ahead_frames(utterance_id)
            if ahead_frames > self._granted_frames[utterance_id]:
                self._granted_frames[utterance_id] = ahead_frames
                actions.append(SetAheadFrames(utterance_id, ahead_frames))
            # An acknowledgement may move `played` backwards. Frames that were reported stay reported.
            new_frames = entry.played // frame_samples - self._consumed_frames[utterance_id]
            if new_frames > 0:
                self._consumed_frames[utterance_id] += new_frames
                actions.append(ConsumeFrames(utterance_id, new_frames))
        return actions

    def _end_flow_control(self, utterance_id: UtteranceId) -> None:
        del self._granted_frames[utterance_id], self._consumed_frames[utterance_id]

    # --- states -------------------------------------------------------------------------------------------------------

    def _check_known(self, utterance_id: UtteranceId) -> None:
        if utterance_id not in self._states:
            raise StateError(f"there is no utterance {utterance_id}: the session has {len(self._states)}")

    def _transition(self, utterance_id: UtteranceId, event: UtteranceEvent) -> UtteranceState:
        state = next_utterance_state(self._states[utterance_id], event)
        self._states[utterance_id] = state
        return state


def _cancel_streams(entries: list[QueuedUtterance]) -> list[EngineAction]:
    """Cancel the streams that are still generating; the others are over in the engine."""
    return [CancelStream(entry.utterance_id) for entry in entries if not entry.fully_generated]


def _report(entry: QueuedUtterance, acknowledged: bool) -> InterruptionReport:
    return InterruptionReport(
        utterance_id=entry.utterance_id,
        generated_samples=entry.generated,
        sent_samples=entry.sent,
        played_samples=entry.played,
        position_source=PositionSource.ACKNOWLEDGED if acknowledged else PositionSource.CLOCK,
        fully_generated=entry.fully_generated and not entry.failed,
    )
