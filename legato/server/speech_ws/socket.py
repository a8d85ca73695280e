"""`/v1/audio/speech/stream`: streaming text in, speech out, over one WebSocket (messages: `messages.py`).

A `SpeechSocket` belongs to one connection. It owns the settings, the utterance that is open for text, and the segmenter
that splits its text if the client asked for sentences. The session owns playback.
"""

from __future__ import annotations

from fastapi import FastAPI
from starlette.websockets import WebSocket

from legato.audio.formats import AudioFormat
from legato.errors import InputError, StateError
from legato.server.encoding import resolve_format, resolve_sample_rate
from legato.server.errors import ApiError
from legato.server.fields import Fields
from legato.server.openai.speech_request import build_request, supports_word_times
from legato.server.request_records import new_request_id
from legato.server.session_runner import SessionRunner
from legato.server.session_settings import check_request, limits_of
from legato.server.speech_ws.messages import (
    MAX_MESSAGE_BYTES,
    InputCancel,
    InputCommit,
    InputDone,
    InputText,
    PlaybackPosition,
    SessionClose,
    SessionConfig,
    parse,
)
from legato.server.speech_ws.sender import SpeechSender, WireUtterance
from legato.server.state import ServerState, state_of
from legato.server.websocket import SocketSender, serve_socket
from legato.session.events import PlaybackAck, SessionOutput
from legato.text.segmenter import Segmenter, SegmentRule

ROUTE = "/v1/audio/speech/stream"
SPLITS = {
    "sentence": SegmentRule(paragraph_chars=1, target_chars=1, max_chars=1200),
    "clause": SegmentRule(paragraph_chars=1, target_chars=1, max_chars=120),
}
"""Both split at sentence ends. "clause" also splits at clause marks from 60 characters on, at spaces from 90."""


class SpeechSocket:
    """The protocol of one connection."""

    max_message_bytes = MAX_MESSAGE_BYTES

    def __init__(self, state: ServerState, socket: SocketSender, session: SessionRunner) -> None:
        self._state = state
        self._model = state
        self._session = session
        self._sender = SpeechSender(state, socket, session)
        self._config = SessionConfig()
        self._audio_format = AudioFormat.PCM
        self._rate_hz = state.tts.sample_rate_hz
        self._configured = False
        self._utterance_count = 0
        self._open_utterance: WireUtterance | None = None
        self._segmenter: Segmenter | None = None
        """Splits the open utterance; None if it is not split."""

    async def on_connect(self) -> None:
        """Send nothing: the client sends the first message."""

    async def on_message(self, fields: Fields) -> None:
        """Process a message of the client."""
        message = parse(fields)
        if not isinstance(message, SessionConfig | SessionClose) and not self._configured:
            await self._configure(SessionConfig())
        match message:
            case SessionConfig():
                await self._configure(message)
                await self._sender.send(self._configured_message())
            case InputText():
                self._add_text(message)
            case InputCommit():
                utterance = self._close_utterance()
                await self._sender.send({"type": "input.committed", "utterance_index": utterance.number})
                await self._sender.end_text(utterance)
            case InputDone():
                # Without text it is a keep-alive: an utterance without sentences, which is done at once.
                utterance = self._new_utterance() if self._open_utterance is None else self._close_utterance()
                await self._sender.end_text(utterance)
            case InputCancel(position=position):
                ack = None if position is None else self._playback_ack(position)
                self._session.interrupt(() if ack is None else (ack,))
                self._cancel_text()
            case PlaybackPosition():
                ack = self._playback_ack(message)
                if ack is not None:
                    self._session.acknowledge(ack)
            case SessionClose():
                if self._open_utterance is not None:
                    await self._sender.end_text(self._close_utterance())
                self._session.close_input()

    async def send_output(self, output: SessionOutput) -> None:
        """Send an output of the session."""
        await self._sender.send_output(output)

    async def send_error(self, error: ApiError) -> None:
        """Send an error that belongs to no utterance."""
        await self._sender.send_error(error, {})

    # --- settings -----------------------------------------------------------------------------------------------------

    async def _configure(self, config: SessionConfig) -> None:
        """Validate and apply settings. Settings that are refused change nothing."""
        if self._open_utterance is not None:
            raise StateError("session.config is not allowed inside an utterance: close it with input.done first")
        model = self._state.for_model(config.model)
        audio_format = resolve_format(config.response_format)
        rate_hz = resolve_sample_rate(config.sample_rate, self._state.tts.sample_rate_hz, audio_format)
        if config.task_type == "Base" and not config.ref_audio:
            # LiveKit's plugin sends it by default, also to models with built-in voices.
            config = config.model_copy(update={"task_type": ""})
        request = await build_request(model, config)
        check_request(model, request)
        limits = limits_of(model, request, buffer_ms=config.buffer_ms, lead_ms=config.lead_ms, start_ms=config.start_ms)
        self._session.configure(request, limits, model=model)
        self._model, self._config, self._audio_format, self._rate_hz = model, config, audio_format, rate_hz
        self._configured = True

    def _configured_message(self) -> dict[str, object]:
        voice = self._config.voice
        return {
            "type": "session.configured",
            "session_id": new_request_id().replace("req_", "sess_"),
            "voice": voice if isinstance(voice, str) else voice.id,
            "format": self._audio_format.value,
            "sample_rate": self._rate_hz,
            "channels": 1,
            "word_times": "exact" if supports_word_times(self._model.tts) else "none",
            "ignored": sorted(name[:64] for name in self._config.model_extra or {})[:32],
        }

    # --- text ---------------------------------------------------------------------------------------------------------

    def _add_text(self, message: InputText) -> None:
        if message.replace:
            self._session.interrupt()
            self._cancel_text()
        utterance = self._open_utterance
        if utterance is None:
            self._session.check_accepting()
            utterance = self._open_utterance = self._new_utterance()
            rule = SPLITS.get(self._config.split_granularity)
            self._segmenter = None if rule is None else Segmenter(rule)
        if self._segmenter is None:
            self._feed(message.text, utterance)
            return
        # The segmenter returns text as soon as its sentence is certain, so generation starts before the sentence ends.
        for piece in self._segmenter.append(message.text):
            self._feed(piece.text, utterance)
            if piece.closes:
                self._end_sentence()

    def _new_utterance(self) -> WireUtterance:
        number, self._utterance_count = self._utterance_count, self._utterance_count + 1
        utterance = WireUtterance(
            number=number, config=self._config, audio_format=self._audio_format, rate_hz=self._rate_hz
        )
        self._sender.open(utterance)
        return utterance

    def _cancel_text(self) -> None:
        """Close the open utterance, if there is one, when everything is cancelled."""
        if self._open_utterance is not None:
            self._open_utterance.text_cancelled = True
            self._open_utterance = None

    def _feed(self, text: str, utterance: WireUtterance) -> None:
        if text:
            self._sender.assign(self._session.add_text(text), utterance)

    def _end_sentence(self) -> None:
        if self._session.open_utterance is not None:
            self._session.end_utterance()

    def _close_utterance(self) -> WireUtterance:
        """End the text of the open utterance; the next text opens another one."""
        utterance = self._open_utterance
        if utterance is None:
            raise InputError("no utterance is open: send input.text first", field="text")
        if self._segmenter is not None:
            for piece in self._segmenter.end():
                self._feed(piece.text, utterance)
        self._end_sentence()
        self._open_utterance = None
        return utterance

    def _playback_ack(self, position: PlaybackPosition) -> PlaybackAck | None:
        if position.utterance >= self._utterance_count:
            raise InputError(f"there is no utterance {position.utterance} yet", field="utterance_index")
        return self._sender.playback_ack(position)


async def serve(socket: WebSocket) -> None:
    """Serve one connection."""
    await serve_socket(socket, state_of(socket), ROUTE, buffer_ms=10_000, protocol=SpeechSocket)


def add_routes(app: FastAPI) -> None:
    """Add the route to `app`."""
    app.add_api_websocket_route(ROUTE, serve)
