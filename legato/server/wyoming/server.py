"""Wyoming protocol over TCP, for Home Assistant: complete texts and streaming text.

`serve_wyoming` opens the listening socket. A `WyomingConnection` serves one client with its own session. Events are
those of the `wyoming` package, but they are read here with size limits, because a header may claim any length. The
protocol has no authentication: listen on trusted networks only.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from dataclasses import dataclass

from wyoming import audio as wyoming_audio
from wyoming.error import Error
from wyoming.event import Event, Eventable, async_write_event
from wyoming.info import Attribution, Describe, Info, TtsProgram, TtsVoice
from wyoming.ping import Ping, Pong
from wyoming.tts import (
    Synthesize,
    SynthesizeChunk,
    SynthesizeStart,
    SynthesizeStop,
    SynthesizeStopped,
    SynthesizeVoice,
)

from legato import __version__
from legato.audio.formats import AudioFormat
from legato.engine.request import SpeechRequest
from legato.errors import InputError, LegatoError, UnsupportedError
from legato.server.client_limits import client_of_address
from legato.server.connection_tasks import connection_tasks, too_old
from legato.server.connections import ACCEPT_BATCH, max_connections, widen_accept_queue
from legato.server.drain import CUT
from legato.server.errors import ApiError, public_error
from legato.server.json_body import parse_json
from legato.server.openai.schemas import SpeechOptions
from legato.server.openai.speech_request import build_request
from legato.server.session_runner import SessionRunner
from legato.server.session_settings import check_request, limits_of
from legato.server.state import ServerState
from legato.server.utterance_encoder import UtteranceEncoder
from legato.session.events import AudioEnd, AudioPacket, AudioStart, SessionOutput, UtteranceFailed, UtteranceId
from legato.text.languages import language_code
from legato.text.prompt import allowed_languages

log = logging.getLogger("legato.server")

ROUTE = "wyoming"
MAX_EVENT_BYTES = 2**20
BUFFER_MS = 30_000


async def serve_wyoming(state: ServerState, host: str, port: int) -> asyncio.Server:
    """Start listening. The caller closes the server."""

    clients = 0

    async def client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal clients
        if clients >= max_connections(state.config.connections) or state.drain.requested:
            writer.close()
            return
        clients += 1
        try:
            await serve_client(reader, writer)
        finally:
            clients -= 1

    async def serve_client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = SpeechRequest()
        limits = limits_of(state, request, buffer_ms=BUFFER_MS)
        address = writer.get_extra_info("peername")
        client = client_of_address(str(address[0]) if address else "")
        async with SessionRunner(state, ROUTE, request, limits, client=client) as session:
            with state.drain.track(lambda: not session.idle), state.metrics.socket_open(ROUTE):
                await WyomingConnection(state, session, reader, writer).run()

    server = await asyncio.start_server(client, host, port, limit=MAX_EVENT_BYTES, backlog=ACCEPT_BATCH)
    for listener in server.sockets:
        widen_accept_queue(listener)
    return server


async def read_event(reader: asyncio.StreamReader) -> Event:
    """Read the next event. `InputError` if it is malformed or too large, `EOFError` at the end of the connection."""
    try:
        line = await reader.readuntil(b"\n")
        header = parse_json(line)
        if not isinstance(header, dict) or not isinstance(header.get("type"), str):
            raise InputError("an event must be a JSON object with a type")
        data = header.get("data") or {}
        if not isinstance(data, dict):
            raise InputError("the data of an event must be a JSON object")
        data_length, payload_length = header.get("data_length") or 0, header.get("payload_length") or 0
        lengths = (data_length, payload_length)
        if not all(isinstance(length, int) and 0 <= length <= MAX_EVENT_BYTES for length in lengths):
            raise InputError(f"the data and the payload of an event are limited to {MAX_EVENT_BYTES} bytes each")
        if data_length:
            more = parse_json(await reader.readexactly(data_length))
            if not isinstance(more, dict):
                raise InputError("the data of an event must be a JSON object")
            data = {**data, **more}
        payload = await reader.readexactly(payload_length)
        return Event(header["type"], data, payload or None)
    except asyncio.IncompleteReadError as error:
        raise EOFError from error
    except (ValueError, asyncio.LimitOverrunError) as error:
        raise InputError(f"not a Wyoming event: {str(error)[:100]}") from None


@dataclass(slots=True)
class Reply:
    """The answer to one `synthesize`, or to one text stream from its `synthesize-start` on.

    Every client waits for its end: `audio-stop` after `audio-start`, and for a text stream `synthesize-stopped`. An
    error alone ends nothing, so a refused request gets the empty audio and the end, too.
    """

    streamed: bool
    utterance_id: UtteranceId | None = None
    """None for a refused request, and for a text stream before its first text."""
    refusal: LegatoError | ApiError | None = None
    text_ended: bool = False

    @property
    def due(self) -> bool:
        """True if it ends without audio of the engine."""
        return self.refusal is not None or (self.utterance_id is None and self.text_ended)


class WyomingConnection:
    """Serves one client, from connect to disconnect."""

    def __init__(
        self, state: ServerState, session: SessionRunner, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._state = state
        self._session = session
        self._reader = reader
        self._writer = writer
        self._stream: Reply | None = None
        """The text stream between `synthesize-start` and `synthesize-stop`, refused or not."""
        self._replies: deque[Reply] = deque()
        """Replies that have not ended, in the order of their requests."""
        self._ending = asyncio.Lock()
        """Held while replies end: both tasks end them, and their events must not mix."""
        self._encoder: UtteranceEncoder | None = None
        """Set between `audio-start` and `audio-stop`."""

    async def run(self) -> None:
        """Serve until the client disconnects, is idle for too long, or sends a malformed event."""
        receive, send = self._receive_events(), self._send_outputs()
        try:
            async with connection_tasks(self._state, receive, send, idle=lambda: self._session.idle) as tasks:
                if tasks.aged.done():
                    await self._send_error(too_old(self._state))
                if tasks.drained.done() and not tasks.drained.result():
                    await self._send_error(ApiError(503, "server_stopping", CUT))
                for task in (tasks.receiving, tasks.sending):
                    if task.done():
                        task.result()
        except (EOFError, ConnectionError, asyncio.TimeoutError):
            log.debug("a Wyoming client disconnected or timed out")
        finally:
            self._writer.close()

    # --- from the client ----------------------------------------------------------------------------------------------

    async def _receive_events(self) -> None:
        while True:
            try:
                event = await asyncio.wait_for(read_event(self._reader), self._state.config.idle_s)
            except asyncio.TimeoutError:
                if self._session.waiting_for_client:
                    raise
                continue  # a client that listens has no reason to send
            except InputError as error:
                await self._send_error(error)
                return  # the start of the next event is unknown
            try:
                await self._process(event)
            except (LegatoError, ApiError) as error:
                await self._send_error(error)

    async def _process(self, event: Event) -> None:
        kind = event.type
        if Describe.is_type(kind):
            await self._send(self._info())
        elif Ping.is_type(kind):
            await self._send(Pong())
        elif Synthesize.is_type(kind):
            if self._stream is None:  # in a stream: the whole text again, for servers without streaming
                await self._synthesize(event)
        elif SynthesizeStart.is_type(kind):
            self._end_stream()  # if the client has not
            await self._start_stream(event)
        elif SynthesizeChunk.is_type(kind):
            if self._stream is None:
                raise InputError("synthesize-chunk is not allowed before synthesize-start")
            text = _text(event)
            if text and self._stream.refusal is None:
                self._stream.utterance_id = self._session.add_text(text)
        elif SynthesizeStop.is_type(kind):
            self._end_stream()
        await self._end_due_replies()

    async def _synthesize(self, event: Event) -> None:
        reply = Reply(streamed=False)
        try:
            self._session.check_accepting()
            await self._configure(event)
            reply.utterance_id = self._session.speak(_text(event))
        except (LegatoError, ApiError) as error:
            reply.refusal = error
        self._replies.append(reply)

    async def _start_stream(self, event: Event) -> None:
        reply = self._stream = Reply(streamed=True)
        try:
            self._session.check_accepting()
            await self._configure(event)
        except (LegatoError, ApiError) as error:
            reply.refusal = error
        self._replies.append(reply)

    def _end_stream(self) -> None:
        """The text of the open stream is complete."""
        if self._stream is not None:
            self._stream.text_ended = True
            self._stream = None
            if self._session.open_utterance is not None:
                self._session.end_utterance()

    async def _configure(self, event: Event) -> None:
        """Apply the voice and the language of an event."""
        if event.data.get("text_format") not in (None, "text"):
            raise UnsupportedError(f"text_format {event.data['text_format']!r} is not supported; send plain text")
        voice_data = event.data.get("voice") or {}
        voice = SynthesizeVoice.from_dict(voice_data) if isinstance(voice_data, dict) else None
        name, language = (voice.name or "", voice.language or "") if voice else ("", "")
        if not isinstance(name, str) or not isinstance(language, str):
            raise InputError("name and language of a voice must be strings", field="voice")
        model = self._model_with_voice(name)
        request = await build_request(model, SpeechOptions(voice=name, language=language or "auto"))
        check_request(model, request)
        self._session.configure(request, limits_of(model, request, buffer_ms=BUFFER_MS), model=model)

    def _model_with_voice(self, name: str) -> ServerState:
        """The first model that has a voice of this name; the default model if none has. Events name no model."""
        return next((model for model in self._state.models if model.names.has_voice(name)), self._state)

    # --- to the client ------------------------------------------------------------------------------------------------

    async def _send_outputs(self) -> None:
        async for output in self._session.outputs():
            await self._send_output(output)

    async def _send_output(self, output: SessionOutput) -> None:
        rate_hz = self._state.tts.sample_rate_hz
        match output:
            case AudioStart():
                self._encoder = UtteranceEncoder(AudioFormat.PCM, rate_hz, rate_hz)
                await self._send(wyoming_audio.AudioStart(rate=rate_hz, width=2, channels=1))
            case AudioPacket(packet=packet):
                assert self._encoder is not None, "audio is sent between AudioStart and AudioEnd only"
                data = self._encoder.encode(packet)
                await self._send(wyoming_audio.AudioChunk(rate=rate_hz, width=2, channels=1, audio=data))
            case AudioEnd(reason=reason):
                async with self._ending:
                    await self._end_reply(reason.value)
                await self._end_due_replies()
            case UtteranceFailed(error=error):
                async with self._ending:
                    await self._fail_reply(error)
                await self._end_due_replies()

    async def _end_due_replies(self) -> None:
        """End the refused and empty requests that are next."""
        async with self._ending:
            while self._replies and self._replies[0].due:
                reply = self._replies[0]
                if reply.refusal is not None:
                    await self._fail_reply(reply.refusal)
                else:
                    self._replies.popleft()
                    await self._send(SynthesizeStopped())

    async def _fail_reply(self, error: LegatoError | ApiError) -> None:
        """End the first reply with an error. Home Assistant waits for an `audio-stop` whatever comes before it."""
        await self._send_error(error)
        if self._encoder is None:
            rate_hz = self._state.tts.sample_rate_hz
            await self._send(wyoming_audio.AudioStart(rate=rate_hz, width=2, channels=1))
        await self._end_reply("failed")

    async def _end_reply(self, reason: str) -> None:
        """End the audio of the first reply. `reason`: the finish reason, an addition to the protocol."""
        reply = self._replies.popleft()
        self._encoder = None
        await self._send(wyoming_audio.AudioStop(), finish_reason=reason)
        if reply.streamed:
            await self._send(SynthesizeStopped(), finish_reason=reason)

    async def _send_error(self, error: LegatoError | ApiError) -> None:
        if isinstance(error, LegatoError):
            error = public_error(error)
        await self._send(Error(text=str(error), code=error.code))

    async def _send(self, message: Eventable, **more: object) -> None:
        """Send an event. `more`: additional fields of its data."""
        event = message.event()
        event.data.update(more)
        await asyncio.wait_for(async_write_event(event, self._writer), self._state.config.stall_s)

    def _info(self) -> Info:
        """The answer to `describe`: one program for each model, with its voices and languages."""
        return Info(tts=[_program(model) for model in self._state.models])


def _program(model: ServerState) -> TtsProgram:
    """A model as Wyoming describes it."""
    attribution = Attribution(name="Legato", url="")
    languages = [language_code(name) for name in allowed_languages(model.tts.model.config.talker) if name != "auto"]
    voices = [
        TtsVoice(
            name=name,
            attribution=attribution,
            installed=True,
            description=name,
            version=__version__,
            languages=languages,
        )
        for name in [*model.names.voice_names(), *model.names.voice_aliases()]
    ]
    return TtsProgram(
        name="legato" if model is model.models[0] else f"legato-{model.config.model_id}",
        attribution=attribution,
        installed=True,
        description=model.config.model_id,
        version=__version__,
        voices=voices,
        supports_synthesize_streaming=True,
    )


def _text(event: Event) -> str:
    text = event.data.get("text")
    if not isinstance(text, str):
        raise InputError(f"{event.type} needs a string field text", field="text")
    return text
