"""Wyoming over TCP, for Home Assistant: whole texts, and text that streams in while speech streams out.

`serve_wyoming` owns a listening socket; a `WyomingConnection` one client, with a session like any other socket's.
Events are those of the `wyoming` package; what comes is read with limits of our own, because a header may claim any
length. The protocol knows no key: listen on addresses that you trust.
"""

from __future__ import annotations

import asyncio
import json
import logging

from wyoming.audio import AudioChunk, AudioStart, AudioStop
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
from legato.engine.resolve import SpeechRequest
from legato.errors import InputError, LegatoError, UnsupportedError
from legato.server.errors import ApiError
from legato.server.schemas import SpeechOptions
from legato.server.session_settings import check_request, limits_of
from legato.server.speech_request import build
from legato.server.spoken import Spoken
from legato.server.state import ServerState
from legato.server.utterance_sound import UtteranceSound
from legato.session.events import Audio, Begins, Closed, Ends, Failed, Outgoing, UtteranceId
from legato.text.prompt import allowed_languages

log = logging.getLogger("legato.server")

ROUTE = "wyoming"
MAX_EVENT_BYTES = 2**20
BUFFER_MS = 30_000


async def serve_wyoming(state: ServerState, host: str, port: int) -> asyncio.Server:
    """Listen; the caller closes the server."""

    async def client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = SpeechRequest()
        async with Spoken(state, ROUTE, request, limits_of(state, request, buffer_ms=BUFFER_MS)) as spoken:
            await WyomingConnection(state, spoken, reader, writer).run()

    return await asyncio.start_server(client, host, port, limit=MAX_EVENT_BYTES)


async def read_event(reader: asyncio.StreamReader) -> Event:
    """The next event. `InputError` where it is none, `EOFError` at the end."""
    try:
        line = await reader.readuntil(b"\n")
        header = json.loads(line)
        if not isinstance(header, dict) or not isinstance(header.get("type"), str):
            raise InputError("an event must be a JSON object with a type")
        data = header.get("data") or {}
        if not isinstance(data, dict):
            raise InputError("the data of an event must be a JSON object")
        lengths = [header.get(name) or 0 for name in ("data_length", "payload_length")]
        if not all(isinstance(each, int) and 0 <= each <= MAX_EVENT_BYTES for each in lengths):
            raise InputError(f"an event may hold {MAX_EVENT_BYTES} bytes")
        if lengths[0]:
            data = {**data, **json.loads(await reader.readexactly(lengths[0]))}
        payload = await reader.readexactly(lengths[1])
        return Event(header["type"], data, payload or None)
    except asyncio.IncompleteReadError as error:
        raise EOFError from error
    except (ValueError, TypeError, RecursionError, asyncio.LimitOverrunError) as error:
        raise InputError(f"not an event of Wyoming: {str(error)[:100]}") from None


class WyomingConnection:
    """One client, from its first event to its last."""

    def __init__(
        self, state: ServerState, spoken: Spoken, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._state = state
        self._spoken = spoken
        self._reader = reader
        self._writer = writer
        self._streaming = False
        self._streams: set[UtteranceId] = set()
        """Utterances whose text came in pieces: their end is told by `synthesize-stopped`."""
        self._sounds: dict[UtteranceId, UtteranceSound] = {}

    async def run(self) -> None:
        """Serve until the client leaves, is silent for too long, or says what cannot be read."""
        listening = asyncio.ensure_future(self._listen())
        talking = asyncio.ensure_future(self._talk())
        try:
            await asyncio.wait({listening, talking}, return_when=asyncio.FIRST_COMPLETED)
            for task in (listening, talking):
                if task.done():
                    task.result()
        except (EOFError, ConnectionError, asyncio.TimeoutError):
            log.debug("a Wyoming client left")
        finally:
            for task in (listening, talking):
                task.cancel()
            await asyncio.gather(listening, talking, return_exceptions=True)
            self._writer.close()

    # --- in -----------------------------------------------------------------------------------------------------------

    async def _listen(self) -> None:
        while True:
            try:
                event = await asyncio.wait_for(read_event(self._reader), self._state.config.idle_s)
            except asyncio.TimeoutError:
                if self._spoken.silent:
                    raise
                continue
            except InputError as error:
                await self._error(error)
                return  # where the next event begins is not known any more
            try:
                await self._take(event)
            except (LegatoError, ApiError) as error:
                await self._error(error)

    async def _take(self, event: Event) -> None:
        kind = event.type
        if Describe.is_type(kind):
            await self._send(self._info())
        elif Ping.is_type(kind):
            await self._send(Pong())
        elif Synthesize.is_type(kind):
            if not self._streaming:  # inside a stream it repeats the whole text, for servers that know no streams
                await self._configure(event)
                self._spoken.say(_text(event))
        elif SynthesizeStart.is_type(kind):
            await self._configure(event)
            self._streaming = True
        elif SynthesizeChunk.is_type(kind):
            if not self._streaming:
                raise InputError("synthesize-chunk came before synthesize-start")
            if text := _text(event):
                self._streams.add(self._spoken.write(text))
        elif SynthesizeStop.is_type(kind) and self._streaming:
            self._streaming = False
            if self._spoken.open_utterance:
                self._spoken.end_text()
            else:
                await self._send(SynthesizeStopped())

    async def _configure(self, event: Event) -> None:
        """The voice and the language that an event asks for."""
        if self._streaming:
            raise InputError("the last stream of text was not ended with synthesize-stop")
        if event.data.get("text_format") not in (None, "text"):
            raise UnsupportedError(f"text_format {event.data['text_format']!r} is not supported; send plain text")
        given = event.data.get("voice") or {}
        voice = SynthesizeVoice.from_dict(given) if isinstance(given, dict) else None
        name, language = (voice.name or "", voice.language or "") if voice else ("", "")
        if not isinstance(name, str) or not isinstance(language, str):
            raise InputError("the name and the language of a voice must be strings", field="voice")
        request = await build(self._state, SpeechOptions(voice=name, language=self._language(language)))
        check_request(self._state, request)
        self._spoken.configure(request, limits_of(self._state, request, buffer_ms=BUFFER_MS))

    def _language(self, code: str) -> str:
        """A language as the model calls it; codes such as en-GB are known by their first letters."""
        short = code.split("-")[0].split("_")[0].lower()
        return LANGUAGES.get(short, code) or "auto"

    # --- out ----------------------------------------------------------------------------------------------------------

    async def _talk(self) -> None:
        async for item in self._spoken.outgoing():
            await self._tell(item)
            if isinstance(item, Closed):
                return

    async def _tell(self, item: Outgoing) -> None:
        rate_hz = self._state.tts.sample_rate_hz
        match item:
            case Begins(utterance=utterance):
                self._sounds[utterance] = UtteranceSound(AudioFormat.PCM, rate_hz, rate_hz)
                await self._send(AudioStart(rate=rate_hz, width=2, channels=1))
            case Audio(utterance=utterance, packet=packet):
                data = self._sounds[utterance].take(packet)
                await self._send(AudioChunk(rate=rate_hz, width=2, channels=1, audio=data))
            case Ends(utterance=utterance):
                del self._sounds[utterance]
                await self._send(AudioStop())
                await self._stopped(utterance)
            case Failed(utterance=utterance, error=error):
                await self._error(error)
                if self._sounds.pop(utterance, None):
                    await self._send(AudioStop())
                await self._stopped(utterance)

    async def _stopped(self, utterance: UtteranceId) -> None:
        if utterance in self._streams:
            self._streams.discard(utterance)
            await self._send(SynthesizeStopped())

    async def _error(self, error: LegatoError | ApiError) -> None:
        await self._send(Error(text=str(error), code=error.code))

    async def _send(self, event: Eventable) -> None:
        await asyncio.wait_for(async_write_event(event.event(), self._writer), self._state.config.stall_s)

    def _info(self) -> Info:
        """What this server speaks with."""
        model = self._state.tts.model.config
        by = Attribution(name="Legato", url="")
        languages = [_code(name) for name in allowed_languages(model.talker) if name != "auto"]
        names = [*self._state.names.speakers, *(kept.name for kept in self._state.voices.kept())]
        voices = [
            TtsVoice(
                name=name, attribution=by, installed=True, description=name, version=__version__, languages=languages
            )
            for name in names
        ]
        program = TtsProgram(
            name="legato",
            attribution=by,
            installed=True,
            description=self._state.config.model_id,
            version=__version__,
            voices=voices,
            supports_synthesize_streaming=True,
        )
        return Info(tts=[program])


LANGUAGES = {
    "zh": "chinese",
    "en": "english",
    "ja": "japanese",
    "ko": "korean",
    "de": "german",
    "fr": "french",
    "ru": "russian",
    "pt": "portuguese",
    "es": "spanish",
    "it": "italian",
}


def _code(language: str) -> str:
    """A language's code, or its name where it has none here."""
    return next((code for code, name in LANGUAGES.items() if name == language), language)


def _text(event: Event) -> str:
    text = event.data.get("text")
    if not isinstance(text, str):
        raise InputError(f"{event.type} needs a text", field="text")
    return text
