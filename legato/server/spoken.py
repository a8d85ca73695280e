"""One client's session on the event loop: the pure machine, and the streams that it asked for.

A `Spoken` owns the machine of one connection, a task for each stream under way, and the texts of what may still be
heard, from connect to disconnect. It carries the machine's actions out on the bridge and hands back, in order, what is
to be sent; whoever leaves it cancels every stream. Knows no socket and no dialect.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import AsyncIterator
from types import TracebackType

from legato.engine.resolve import SpeechRequest
from legato.errors import GenerationError, LegatoError, TextTooLongError
from legato.flow import SpokenWord
from legato.server.records import RequestRecord, new_request_id
from legato.server.speaking import Speaking
from legato.server.state import ServerState
from legato.session.events import (
    Acknowledged,
    Audio,
    Closed,
    EndText,
    EngineAction,
    Failed,
    Finish,
    Interrupt,
    Interrupted,
    Leave,
    OpenStream,
    Outgoing,
    PacketCame,
    Played,
    SessionEvent,
    Stopped,
    StreamFailed,
    TimePassed,
    UtteranceId,
    Write,
)
from legato.session.heard import Heard, heard
from legato.session.machine import Session
from legato.session.playback import PlaybackLimits

log = logging.getLogger("legato.server")


class Spoken:
    """Use as `async with`. All methods belong to the loop's thread."""

    def __init__(self, state: ServerState, route: str, request: SpeechRequest, limits: PlaybackLimits) -> None:
        self._state = state
        self._route = route
        self._request = request
        self._session = Session(limits, time.monotonic)
        self._speaking: dict[UtteranceId, Speaking] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Event()
        self._lingering: set[UtteranceId] = set()
        """Over and told, but still open for the client, whose text is dropped."""
        self._whole = False

    # --- from the client ----------------------------------------------------------------------------------------------

    def configure(self, request: SpeechRequest, limits: PlaybackLimits) -> None:
        """How the utterances that follow are spoken."""
        self._request = request
        self._session.limit(limits)

    def write(self, text: str, *, replaces: bool = False) -> UtteranceId:
        """More text of the open utterance; opens one if none is open."""
        for utterance in [] if replaces else self._session.open_utterance:
            self._check_length(sum(map(len, self._speaking[utterance].text)) + len(text))
        self._check_length(len(text))
        self._take(Write(text, replaces))
        return self._session.open_utterance[0]

    def say(self, text: str, *, replaces: bool = False) -> UtteranceId:
        """A whole utterance. None may be open."""
        self._whole = True
        try:
            utterance = self.write(text, replaces=replaces)
            self.end_text()
        finally:
            self._whole = False
        return utterance

    def end_text(self) -> None:
        """The open utterance has all its text."""
        self._take(EndText())

    def interrupt(self, played: tuple[Acknowledged, ...] = ()) -> None:
        """Barge-in."""
        self._take(Interrupt(played))

    def acknowledge(self, utterance: UtteranceId, samples: int) -> None:
        """The client's device has played so much."""
        self._take(Acknowledged(utterance, samples))

    def finish(self) -> None:
        """Nothing more will be written."""
        self._take(Finish())

    @property
    def open_utterance(self) -> list[UtteranceId]:
        """The utterance that takes text: one or none."""
        return self._session.open_utterance

    @property
    def idle(self) -> bool:
        """True when nothing is written, made or heard."""
        return self._session.idle

    @property
    def silent(self) -> bool:
        """True when nothing is being heard or made: the client's turn."""
        return self._session.silent

    # --- to the client ------------------------------------------------------------------------------------------------

    async def outgoing(self) -> AsyncIterator[Outgoing]:
        """What is to be sent, in order, each when it is due; ends after `Closed`."""
        while True:
            self._changed.clear()
            items = self._session.pull()
            for item in items:
                yield item
                self._sent(item)
                self._forget(item)
                if isinstance(item, Closed):
                    return
            if not items:
                await self._until(self._session.wake_s())
                self._take(TimePassed())

    def record(self, utterance: UtteranceId) -> RequestRecord:
        """The account of an utterance under way."""
        return self._speaking[utterance].record

    def text(self, utterance: UtteranceId) -> str:
        """The text of an utterance under way, as far as it was written."""
        return "".join(self._speaking[utterance].text)

    def text_tokens(self, utterance: UtteranceId) -> int:
        """Tokens of an utterance's text track so far."""
        return sum(stream.handle.text_tokens for stream in self._speaking[utterance].streams)

    def words(self, utterance: UtteranceId) -> list[SpokenWord]:
        """The words of an utterance under way whose times are known."""
        frame_samples = self._state.tts.model.config.codec.frame_samples
        return [word for stream in self._speaking[utterance].streams for word in stream.handle.words(frame_samples)]

    def heard(self, report: Interrupted) -> Heard:
        """How much of an interrupted utterance's text was heard."""
        return heard(
            self.text(report.utterance),
            self.words(report.utterance),
            played_samples=report.played_samples,
            made_samples=report.made_samples,
            made_whole=report.made_whole,
            calm_frame=self._state.tts.model.config.codec.frame_samples,
        )

    async def __aenter__(self) -> Spoken:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._take(Leave())
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # --- the machine's actions ----------------------------------------------------------------------------------------

    def _take(self, event: SessionEvent) -> None:
        for action in self._session.take(event):
            self._do(action)
        for utterance in self._lingering - set(self._session.open_utterance):
            self._lingering.discard(utterance)
            self._speaking.pop(utterance, None)
        self._changed.set()

    def _do(self, action: EngineAction) -> None:
        if isinstance(action, OpenStream):
            self._open(action)
            return
        self._speaking[action.utterance].do(action)

    def _open(self, action: OpenStream) -> None:
        record = RequestRecord(id=new_request_id(), route=self._route, sample_rate_hz=self._state.tts.sample_rate_hz)
        self._state.records.add(record)
        speaking = Speaking(self._request, record, action.ahead_frames, self._whole)
        self._speaking[action.utterance] = speaking
        task = asyncio.ensure_future(self._speak(action.utterance, speaking))
        speaking.tasks.append(task)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _speak(self, utterance: UtteranceId, speaking: Speaking) -> None:
        """One stream from its opening to its last packet; leaving it, however, cancels it in the engine."""
        record = speaking.record
        self._state.metrics.began(self._route)
        try:
            await self._stream(utterance, speaking)
            record.status = "finished"
        except LegatoError as error:
            record.status, record.error_code, record.error_message = "failed", error.code, str(error)
            self._take(StreamFailed(utterance, error))
        except Exception:  # boundary: a fault of ours ends this utterance aloud; the connection lives
            log.exception("%s failed", record.id)
            record.status, record.error_code = "failed", "internal_error"
            told = GenerationError("the server failed; its log says more")
            self._take(StreamFailed(utterance, told))
        except asyncio.CancelledError:
            record.status = record.finish_reason = "cancelled"
            raise
        finally:
            why = record.finish_reason or record.error_code
            self._state.metrics.ended(self._route, record.status, why)
            log.info("%s %s: %s (%s) after %d frames", record.id, self._route, record.status, why, record.frames)

    async def _stream(self, utterance: UtteranceId, speaking: Speaking) -> None:
        whole = "".join(speaking.text) if speaking.whole else None
        ahead = max(1, speaking.ahead_frames)
        async with await self._state.bridge.open(speaking.request, whole, ahead_frames=ahead) as stream:
            record = speaking.record
            speaking.attach(stream)
            while True:
                event = await stream.next_event(consume=False)
                if isinstance(event, LegatoError):
                    raise event
                record.frames += event.frames
                record.samples += event.sample_count
                record.input_tokens = stream.handle.text_tokens
                if event.last and event.finish_reason:
                    record.finish_reason = event.finish_reason.value
                self._take(PacketCame(utterance, event))
                if event.last:
                    return

    # --- the rest -----------------------------------------------------------------------------------------------------

    def _check_length(self, characters: int) -> None:
        limit = self._state.config.text_characters
        if characters > limit:
            raise TextTooLongError(
                f"the utterance would have {characters} characters, and the limit is {limit}", field="text"
            )

    async def _until(self, wake_s: float) -> None:
        """Wait for a change, or for the clock."""
        try:
            await asyncio.wait_for(self._changed.wait(), None if math.isinf(wake_s) else wake_s - time.monotonic())
        except asyncio.TimeoutError:
            return

    def _sent(self, item: Outgoing) -> None:
        """The socket has taken an item."""
        if isinstance(item, Audio) and item.packet.first_sample == 0:
            for timing in self.record(item.utterance).timings:
                self._state.metrics.sent(self._route, timing, time.monotonic())

    def _forget(self, item: Outgoing) -> None:
        """What was told to its end is kept no longer."""
        over: list[UtteranceId] = []
        if isinstance(item, Stopped):
            over = [each.utterance for each in item.utterances]
        elif isinstance(item, Failed | Played):
            over = [item.utterance]
        for utterance in over:
            if utterance in self._session.open_utterance:
                self._lingering.add(utterance)
            else:
                self._speaking.pop(utterance, None)
