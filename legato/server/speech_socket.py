"""`/v1/audio/speech/stream`: text in pieces in, speech out, on one socket (messages: `speech_messages.py`).

A `SpeechSocket` owns the client's half between connect and disconnect: the settings, the number of the utterance that
is being written, and the splitter that cuts it where the client asked for sentences. The session decides what is heard.
"""

from __future__ import annotations

from fastapi import FastAPI
from starlette.websockets import WebSocket

from legato.audio.formats import AudioFormat
from legato.errors import InputError, StateError
from legato.server.conversation import Wire, serve_socket
from legato.server.encoding import chosen_format, chosen_rate
from legato.server.errors import ApiError
from legato.server.fields import Fields
from legato.server.records import new_request_id
from legato.server.session_settings import check_request, limits_of
from legato.server.speech_answers import SpeechAnswers, WireUtterance
from legato.server.speech_messages import (
    MAX_MESSAGE_BYTES,
    InputCancel,
    InputCommit,
    InputDone,
    InputText,
    PlayedThrough,
    SessionClose,
    SessionConfig,
    parse,
)
from legato.server.speech_request import build, knows_words
from legato.server.spoken import Spoken
from legato.server.state import ServerState
from legato.session.events import Acknowledged, Outgoing
from legato.text.segment import Segmenter, SegmentRule

ROUTE = "/v1/audio/speech/stream"
SPLITS = {
    "sentence": SegmentRule(paragraph_chars=1, target_chars=1, max_chars=1200),
    "clause": SegmentRule(paragraph_chars=1, target_chars=1, max_chars=120),
}
"""A sentence's end closes a piece; with "clause" a clause mark does too from 60 characters on, a blank from 90."""


class SpeechSocket:
    """The dialect of one connection."""

    message_bytes = MAX_MESSAGE_BYTES

    def __init__(self, state: ServerState, wire: Wire, spoken: Spoken) -> None:
        self._state = state
        self._spoken = spoken
        self._answers = SpeechAnswers(state, wire, spoken)
        self._config = SessionConfig()
        self._kind, self._rate_hz = AudioFormat.PCM, state.tts.sample_rate_hz
        self._configured = False
        self._next = 0
        self._writing: list[WireUtterance] = []
        self._splitters: list[Segmenter] = []

    async def begin(self) -> None:
        """The client speaks first."""

    async def take(self, fields: Fields) -> None:
        """Do what a message says."""
        message = parse(fields)
        if not isinstance(message, SessionConfig | SessionClose) and not self._configured:
            await self._configure(SessionConfig())
        match message:
            case SessionConfig():
                await self._configure(message)
                await self._answers.say(self._configured_answer())
            case InputText():
                self._text(message)
            case InputCommit():
                utterance = self._stop_writing()
                await self._answers.say({"type": "input.committed", "utterance_index": utterance.number})
                await self._answers.written(utterance)
            case InputDone():
                await self._answers.written(self._stop_writing())
            case InputCancel(played=played):
                words = [word for each in played for word in self._acknowledged(each)]
                self._spoken.interrupt(tuple(words))
                self._writing.clear()
            case PlayedThrough():
                for word in self._acknowledged(message):
                    self._spoken.acknowledge(word.utterance, word.samples)
            case SessionClose():
                for utterance in [self._stop_writing()] if self._writing else []:
                    await self._answers.written(utterance)
                self._spoken.finish()

    async def tell(self, item: Outgoing) -> None:
        """Send one item of the session."""
        await self._answers.tell(item)

    async def refuse(self, error: ApiError) -> None:
        """Tell the client of an error."""
        await self._answers.error(error, {})

    # --- settings -----------------------------------------------------------------------------------------------------

    async def _configure(self, config: SessionConfig) -> None:
        if self._writing:
            raise StateError("session.config came inside an utterance: close it with input.done first")
        self._state.names.check_model(config.model)
        kind = chosen_format(config.response_format)
        rate_hz = chosen_rate(config.sample_rate, self._state.tts.sample_rate_hz, kind)
        request = await build(self._state, config)
        check_request(self._state, request)
        ms = {"buffer_ms": config.buffer_ms, "lead_ms": config.lead_ms, "start_ms": config.start_ms}
        self._spoken.configure(request, limits_of(self._state, request, **ms))
        self._config, self._kind, self._rate_hz = config, kind, rate_hz
        self._configured = True

    def _configured_answer(self) -> dict[str, object]:
        voice = self._config.voice
        return {
            "type": "session.configured",
            "session_id": new_request_id().replace("req_", "sess_"),
            "voice": voice if isinstance(voice, str) else voice.id,
            "format": self._kind.value,
            "sample_rate": self._rate_hz,
            "channels": 1,
            "word_times": "exact" if knows_words(self._state.tts) else "none",
            "ignored": sorted(name[:64] for name in self._config.model_extra or {})[:32],
        }

    # --- text ---------------------------------------------------------------------------------------------------------

    def _text(self, message: InputText) -> None:
        if message.replace:
            self._spoken.interrupt()
            self._writing.clear()
        if not self._writing:
            self._writing.append(WireUtterance(self._next, self._config, self._kind, self._rate_hz))
            self._next += 1
            split = SPLITS.get(self._config.split_granularity)
            self._splitters = [Segmenter(split)] if split else []
        if not self._splitters:
            self._write(message.text)
        for piece in [piece for splitter in self._splitters for piece in splitter.append(message.text)]:
            self._write(piece.text)
            if piece.closes:
                self._end_sentence()

    def _write(self, text: str) -> None:
        """Text goes out as soon as it is certain to which sentence it belongs."""
        if text:
            self._answers.place(self._spoken.write(text), self._writing[0])

    def _end_sentence(self) -> None:
        if self._spoken.open_utterance:
            self._spoken.end_text()

    def _stop_writing(self) -> WireUtterance:
        """The utterance has all its text; the next text opens the next one."""
        if not self._writing:
            raise InputError("no utterance is open: send input.text first", field="text")
        for piece in [piece for splitter in self._splitters for piece in splitter.end()]:
            self._write(piece.text)
        self._end_sentence()
        return self._writing.pop()

    def _acknowledged(self, message: PlayedThrough) -> tuple[Acknowledged, ...]:
        if message.utterance >= self._next:
            raise InputError(f"there is no utterance {message.utterance} yet", field="utterance_index")
        return self._answers.acknowledged(message)


async def serve(socket: WebSocket) -> None:
    """One connection."""
    await serve_socket(socket, ROUTE, buffer_ms=10_000, dialect=SpeechSocket)


def add_routes(app: FastAPI) -> None:
    """Make `app` serve the route."""
    app.add_api_websocket_route(ROUTE, serve)
