"""Runs one client session on the event loop: feeds events to the session state machine and executes its actions.

A `SessionRunner` belongs to one connection, from connect to disconnect. It owns the session, a task for each engine
stream, and the texts of utterances until their end is reported. Leaving its context cancels all streams. It is
independent of transport and wire protocol.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from types import TracebackType
from typing import ParamSpec
from weakref import WeakSet

from legato.engine.request import SpeechRequest
from legato.errors import GenerationError, LegatoError, TextTooLongError
from legato.server.bridge import AbortableEncoder
from legato.server.client_limits import OPEN_STREAMS, TextTimeoutError, check_utterances
from legato.server.errors import ServerFailureError
from legato.server.request_records import RequestRecord, new_request_id
from legato.server.state import ServerState
from legato.server.utterance import ActiveUtterance
from legato.session.events import (
    AddText,
    AudioPacket,
    Cancelled,
    ClockTick,
    CloseInput,
    Disconnect,
    EndUtterance,
    EngineAction,
    Interrupt,
    InterruptionReport,
    OpenStream,
    PacketReceived,
    PlaybackAck,
    PlaybackFinished,
    SessionClosed,
    SessionEvent,
    SessionOutput,
    StreamFailed,
    UtteranceFailed,
    UtteranceId,
)
from legato.session.heard import HeardText, heard_text
from legato.session.playback import PlaybackLimits
from legato.session.session import Session
from legato.session.states import UtteranceState
from legato.types import SpokenWord

P = ParamSpec("P")

log = logging.getLogger("legato.server")


class SessionRunner:
    """Use as `async with`. Call all methods on the event loop's thread."""

    def __init__(
        self,
        state: ServerState,
        route: str,
        request: SpeechRequest,
        limits: PlaybackLimits,
        *,
        client: str = "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`client`: whose streams these are (`client_limits.py`). `clock`: monotonic seconds, that of the engine."""
        self._client = client
        self._state = state
        self._model = state
        """The model of the utterances that follow."""
        self._route = route
        self._request = request
        self._clock = clock
        self._session = Session(limits, clock)
        self._utterances: dict[UtteranceId, ActiveUtterance] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Event()
        self._encoders: WeakSet[AbortableEncoder] = WeakSet()
        self._open_lock = asyncio.Lock()
        """Makes streams reach the engine in utterance order (asyncio locks are FIFO). A later utterance that opens
        faster could otherwise take the slot that an earlier one needs, and wait for it."""
        self._open_slots = asyncio.Semaphore(OPEN_STREAMS)
        """Streams in the engine. Those of later utterances, such as the sentences of a long text, wait here: in the
        queue of the engine they would keep other clients out."""
        self._text_timer: asyncio.TimerHandle | None = None
        """Runs while an utterance is open for text."""
        self._ended_while_open: set[UtteranceId] = set()
        """Utterances whose end is reported but which the client has not ended: their text is still accepted, and
        dropped."""

    def check_accepting(self) -> None:
        """`ApiError` 503 if a new utterance must be refused because the server is stopping or not ready.

        Protocols call it when the client starts new work; utterances that are open already may go on.
        """
        self._model.check_ready()

    # --- from the client ----------------------------------------------------------------------------------------------

    def configure(self, request: SpeechRequest, limits: PlaybackLimits, *, model: ServerState) -> None:
        """Set request, limits and model of the utterances that follow."""
        self._request = request
        self._model = model
        self._session.set_limits(limits)

    def add_text(self, text: str, *, replaces: bool = False) -> UtteranceId:
        """Append text to the open utterance, or open one. `replaces`: interrupt everything first."""
        return self._add_text(text, replaces=replaces, complete=False)

    def speak(self, text: str, *, replaces: bool = False) -> UtteranceId:
        """Queue a complete utterance. No utterance may be open."""
        utterance_id = self._add_text(text, replaces=replaces, complete=True)
        self.end_utterance()
        return utterance_id

    def end_utterance(self) -> None:
        """The text of the open utterance is complete."""
        self._handle(EndUtterance())

    def interrupt(self, played: tuple[PlaybackAck, ...] = ()) -> None:
        """Barge-in: stop everything. `played`: the play position as the client reports it."""
        self._handle(Interrupt(played))

    def acknowledge(self, ack: PlaybackAck) -> None:
        """Set the play position to what the client reports."""
        self._handle(ack)

    def close_input(self) -> None:
        """The client sends no more text; the session closes when all audio is sent."""
        self._handle(CloseInput())

    @property
    def open_utterance(self) -> UtteranceId | None:
        """The utterance that takes text."""
        return self._session.open_utterance

    @property
    def idle(self) -> bool:
        """True if no utterance is open, queued or playing."""
        return self._session.idle

    @property
    def waiting_for_client(self) -> bool:
        """True if nothing is playing or being generated except utterances that wait for more text."""
        return self._session.waiting_for_client

    # --- to the client ------------------------------------------------------------------------------------------------

    async def outputs(self) -> AsyncIterator[SessionOutput]:
        """Outputs in order, each when it is due; ends after `SessionClosed`.

        The next output is taken when the caller has sent the previous one: a slow client slows down the session.
        """
        while True:
            self._changed.clear()
            output = self._session.next_output()
            if output is None:
                await self._wait_until(self._session.next_wake_s())
                self._handle(ClockTick())
                continue
            yield output
            self._record_first_audio(output)
            self._release(output)
            if isinstance(output, SessionClosed):
                return

    def record(self, utterance_id: UtteranceId) -> RequestRecord:
        """The request record of an active utterance."""
        return self._utterances[utterance_id].record

    def text(self, utterance_id: UtteranceId) -> str:
        """The text of an active utterance, as far as it was received."""
        return "".join(self._utterances[utterance_id].text)

    def text_tokens(self, utterance_id: UtteranceId) -> int:
        """Tokens in the text track of an active utterance so far."""
        stream = self._utterances[utterance_id].stream
        return 0 if stream is None else stream.handle.text_tokens

    def words(self, utterance_id: UtteranceId) -> list[SpokenWord]:
        """The words of an active utterance whose times are known."""
        stream = self._utterances[utterance_id].stream
        return [] if stream is None else stream.handle.words(self._frame_samples)

    def heard_text(self, report: InterruptionReport) -> HeardText:
        """How much of an interrupted utterance's text was heard."""
        return heard_text(
            self.text(report.utterance_id),
            self.words(report.utterance_id),
            played_samples=report.played_samples,
            generated_samples=report.generated_samples,
            fully_generated=report.fully_generated,
            frame_samples=self._frame_samples,
        )

    async def __aenter__(self) -> SessionRunner:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._handle(Disconnect())
        self._stop_text_timer()
        for task in self._tasks:
            task.cancel()
        for encoder in self._encoders:
            encoder.abort()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def encode(
        self, encoder: AbortableEncoder, work: Callable[P, bytes], *args: P.args, **kwargs: P.kwargs
    ) -> bytes:
        """Run `work`, a method of `encoder`. The encoder is aborted when the session ends, if not before."""
        self._encoders.add(encoder)
        return await self._state.bridge.encode(encoder, work, *args, **kwargs)

    # --- events and actions -------------------------------------------------------------------------------------------

    def _add_text(self, text: str, *, replaces: bool, complete: bool) -> UtteranceId:
        open_utterance = None if replaces else self._session.open_utterance
        received = 0 if open_utterance is None else self._utterances[open_utterance].characters
        self._check_length(received + len(text))
        if open_utterance is None:
            check_utterances(len(self._utterances), self._state.config.socket_utterances, self._state.metrics)
        self._handle(AddText(text, replaces), complete_text=complete)
        utterance_id = self._session.open_utterance
        assert utterance_id is not None, "AddText leaves an utterance open"
        self._start_text_timer(utterance_id)
        return utterance_id

    def _handle(self, event: SessionEvent, *, complete_text: bool = False) -> None:
        """Pass an event to the session and execute its actions.

        `complete_text`: an utterance that this event opens gets no text beyond the event's.
        """
        for action in self._session.handle(event):
            if isinstance(action, OpenStream):
                self._open(action, complete_text)
            else:
                self._execute(action)
        for utterance_id in self._ended_while_open - {self._session.open_utterance}:
            self._ended_while_open.discard(utterance_id)
            self._utterances.pop(utterance_id, None)
        self._changed.set()

    def _execute(self, action: EngineAction) -> None:
        self._utterances[action.utterance_id].execute(action)

    def _open(self, action: OpenStream, complete_text: bool) -> None:
        record = RequestRecord(
            id=new_request_id(self._state.config.replica),
            route=self._route,
            sample_rate_hz=self._state.tts.sample_rate_hz,
        )
        self._state.records.add(record)
        utterance = ActiveUtterance(
            bridge=self._model.bridge,
            request=self._request,
            record=record,
            ahead_frames=action.ahead_frames,
            complete_text=complete_text,
        )
        self._utterances[action.utterance_id] = utterance
        task = asyncio.create_task(self._run_stream(action.utterance_id, utterance))
        utterance.task = task
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run_stream(self, utterance_id: UtteranceId, utterance: ActiveUtterance) -> None:
        """One engine stream, from opening to its last packet, with its record and metrics."""
        record = utterance.record
        self._state.metrics.request_started(self._route)
        try:
            await self._receive_packets(utterance_id, utterance)
            record.status = "finished"
        except LegatoError as error:
            record.status, record.error_code, record.error_message = "failed", error.code, str(error)
            self._handle(StreamFailed(utterance_id, error))
        except Exception:  # boundary: an internal error ends this utterance, not the connection
            log.exception("%s failed", record.id)
            record.status, record.error_code = "failed", "internal_error"
            internal = f"internal server error (request id {record.id})"
            self._handle(StreamFailed(utterance_id, ServerFailureError(internal, code=GenerationError.code)))
        except asyncio.CancelledError:
            record.status = record.finish_reason = "cancelled"
            if utterance.failure is not None:
                record.status, record.finish_reason = "failed", "failed"
                record.error_code, record.error_message = utterance.failure.code, str(utterance.failure)
            raise
        finally:
            reason = record.finish_reason or record.error_code
            self._state.metrics.request_finished(self._route, record.status, reason)
            log.info("%s %s: %s (%s) after %d frames", record.id, self._route, record.status, reason, record.frames)

    async def _receive_packets(self, utterance_id: UtteranceId, utterance: ActiveUtterance) -> None:
        async with AsyncExitStack() as stack:
            async with self._open_lock:
                await stack.enter_async_context(self._open_slots)
                stack.enter_context(self._state.clients.stream(self._client))
                text = "".join(utterance.text) if utterance.complete_text else None
                opened = await utterance.bridge.open(
                    utterance.request, text, ahead_frames=utterance.ahead_frames, request_id=utterance.record.id
                )
            stream = await stack.enter_async_context(opened)
            record = utterance.record
            utterance.attach(stream)
            while True:
                # Frames are consumed when the client has played them, not when they arrive here.
                event = await stream.next_event(consume=False)
                if isinstance(event, LegatoError):
                    raise event
                record.frames += event.frames
                record.samples += event.sample_count
                record.input_tokens = stream.handle.text_tokens
                if event.last and event.finish_reason:
                    record.finish_reason = event.finish_reason.value
                self._handle(PacketReceived(utterance_id, event))
                if event.last:
                    return

    # --- limits -------------------------------------------------------------------------------------------------------

    def _start_text_timer(self, utterance_id: UtteranceId) -> None:
        """Limit the time until the next text of the open utterance."""
        self._stop_text_timer()
        timeout_s = self._state.config.text_s
        loop = asyncio.get_running_loop()
        self._text_timer = loop.call_later(timeout_s, self._on_text_timeout, utterance_id)

    def _stop_text_timer(self) -> None:
        if self._text_timer is not None:
            self._text_timer.cancel()
            self._text_timer = None

    def _on_text_timeout(self, utterance_id: UtteranceId) -> None:
        """End an utterance that waits for text. A client that is listening to it gets more time."""
        self._text_timer = None
        if self._session.open_utterance != utterance_id:
            return
        if self._session.state_of(utterance_id) is not UtteranceState.WRITING:
            return  # it is over; its text is dropped
        if not self._session.waiting_for_client:
            self._start_text_timer(utterance_id)
            return
        self._state.metrics.limit_reached("text_s")
        error = TextTimeoutError(f"no text for {self._state.config.text_s:g} s: the utterance was ended", field="text")
        utterance = self._utterances[utterance_id]
        utterance.failure = error
        if utterance.task is not None:
            utterance.task.cancel()
        self._handle(StreamFailed(utterance_id, error))

    # --- helpers ------------------------------------------------------------------------------------------------------

    @property
    def _frame_samples(self) -> int:
        return self._state.tts.model.config.codec.frame_samples

    def _check_length(self, characters: int) -> None:
        limit = self._state.config.text_characters
        if characters > limit:
            raise TextTooLongError(
                f"the utterance would have {characters} characters, and the limit is {limit}", field="text"
            )

    async def _wait_until(self, wake_s: float) -> None:
        """Wait for the next event, at most until `wake_s`."""
        timeout_s = None if math.isinf(wake_s) else wake_s - self._clock()
        try:
            await asyncio.wait_for(self._changed.wait(), timeout_s)
        except asyncio.TimeoutError:
            return

    def _record_first_audio(self, output: SessionOutput) -> None:
        """Record the time to first audio when the socket has accepted the first packet of an utterance."""
        if isinstance(output, AudioPacket) and output.packet.first_sample == 0:
            timing = self.record(output.utterance_id).timing
            if timing is not None:
                self._state.metrics.first_bytes_sent(self._route, timing, self._clock())

    def _release(self, output: SessionOutput) -> None:
        """Release the utterances whose end this output has reported."""
        ended: list[UtteranceId] = []
        if isinstance(output, Cancelled):
            ended = [report.utterance_id for report in output.reports]
        elif isinstance(output, UtteranceFailed | PlaybackFinished):
            ended = [output.utterance_id]
        for utterance_id in ended:
            if utterance_id == self._session.open_utterance:
                self._ended_while_open.add(utterance_id)
            else:
                self._utterances.pop(utterance_id, None)
