"""Transports under test: in-process, HTTP and WebSocket, and a local server for the latter two.

Client, server and engine run in one process and use the same monotonic clock. All transports send the same request:
text in streaming layout, PCM output, the same seed. Calls block; a transport can be shared between threads.
"""

from __future__ import annotations

import asyncio
import base64
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from legato.api import CloneReference, Legato
from legato.bench.playback import AudioPiece
from legato.bench.workload import Utterance, text_at_rate
from legato.client.http import Client, IncompleteResponseError, ServerError
from legato.client.socket import AudioData, SpeechClient, SpeechError
from legato.config.server import ServerConfig
from legato.engine.request import SpeechRequest
from legato.engine.text_source import TextFeed
from legato.errors import InputError, LegatoError, StateError
from legato.server.app import create_app
from legato.server.request_records import RequestRecord as ServerRecord
from legato.server.state import ServerState
from legato.server.uvicorn_server import make_server
from legato.types import TextLayout

IN_PROCESS, HTTP, WEBSOCKET = "in-process", "http", "websocket"
LAYOUT = TextLayout.STREAMING
SERVER_START_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class Response:
    """Result of one utterance.

    `server_record`: the server's record of the request; None if the request was rejected or failed. `error_code`: code
    of the error, or "".
    """

    sent_s: float
    pieces: tuple[AudioPiece, ...]
    server_record: ServerRecord | None = None
    error_code: str = ""


class Transport(Protocol):
    """A way to send a request."""

    @property
    def name(self) -> str:
        """The name in records."""

    def synthesize(self, utterance: Utterance) -> Response:
        """Send the utterance and receive all audio."""


class InProcessTransport:
    """`legato.api`, called in the client's thread."""

    name = IN_PROCESS

    def __init__(self, tts: Legato, clock: Callable[[], float] = time.monotonic) -> None:
        self._tts = tts
        self._clock = clock

    def synthesize(self, utterance: Utterance) -> Response:
        """Submit to the engine and read all packets."""
        sent_s = self._clock()
        pieces: list[AudioPiece] = []
        record = ServerRecord(id="", route=IN_PROCESS, sample_rate_hz=self._tts.sample_rate_hz)
        try:
            handle = self._tts.open(self._request(utterance), whole_text=not utterance.text_tokens_per_s).handle
            record.timing = handle.timing
            TextFeed(handle, _paced_text(utterance) if utterance.text_tokens_per_s else utterance.text)
            for packet in handle:
                if packet.sample_count:
                    pieces.append((self._clock(), packet.int16()))
                record.frames += packet.frames
                record.finish_reason = packet.finish_reason.value if packet.finish_reason else ""
                record.input_tokens = handle.text_tokens
        except LegatoError as error:
            return Response(sent_s, tuple(pieces), error_code=error.code)
        return Response(sent_s, tuple(pieces), record)

    def _request(self, utterance: Utterance) -> SpeechRequest:
        clone = CloneReference(utterance.reference, utterance.transcript)
        return SpeechRequest(
            instruct=utterance.instruct,
            reference=self._tts.reference(clone) if utterance.reference else None,
            layout=LAYOUT,
            seed=utterance.seed,
            packet_frames=utterance.packet_frames or None,
            max_frames=utterance.max_frames,
        )


class HttpTransport:
    """One `POST /v1/audio/speech` on a new connection, with the whole text."""

    name = HTTP

    def __init__(
        self, url: str, server_record: Callable[[str], ServerRecord], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`server_record` returns the server's record of a request by its id."""
        self._client = Client(url)
        self._server_record = server_record
        self._clock = clock

    def synthesize(self, utterance: Utterance) -> Response:
        """Send one request and read the body."""
        if utterance.text_tokens_per_s:
            raise InputError("HTTP does not support --text-rate: use in-process or websocket")
        sent_s = self._clock()
        pieces: list[AudioPiece] = []
        try:
            with self._client.speak(utterance.text, response_format="pcm", **_fields(utterance)) as body:
                pieces += ((self._clock(), samples) for samples in body.pcm())
                return Response(sent_s, tuple(pieces), self._server_record(body.request_id))
        except ServerError as error:
            return Response(sent_s, tuple(pieces), error_code=error.code)
        except IncompleteResponseError:
            return Response(sent_s, tuple(pieces), error_code="broken_off")


class WebSocketTransport:
    """One utterance on a WebSocket that is already open and configured, as in a voice agent."""

    name = WEBSOCKET

    def __init__(
        self, url: str, server_record: Callable[[str], ServerRecord], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`server_record` returns the server's record of a request by its id."""
        self._url = url.replace("http", "ws", 1)
        self._server_record = server_record
        self._clock = clock

    def synthesize(self, utterance: Utterance) -> Response:
        """Connect, then send the text and receive audio; the time starts after connecting."""
        return asyncio.run(self._synthesize(utterance))

    async def _synthesize(self, utterance: Utterance) -> Response:
        pieces: list[AudioPiece] = []
        sent_s = self._clock()
        try:
            async with SpeechClient(self._url, {**_fields(utterance), "response_format": "pcm"}) as speech:
                sent_s = self._clock()
                sending = asyncio.ensure_future(self._send_text(speech, utterance))
                request_id = await self._receive(speech, pieces)
                await sending
        except SpeechError as error:
            return Response(sent_s, tuple(pieces), error_code=error.server_code)
        return Response(sent_s, tuple(pieces), None if request_id is None else self._server_record(request_id))

    async def _receive(self, speech: SpeechClient, pieces: list[AudioPiece]) -> str | None:
        """Add audio to `pieces` until the session is done. Returns the server's request id, None without audio."""
        request_id: str | None = None
        async for event in speech.events():
            if isinstance(event, AudioData):
                pieces.append((self._clock(), event.samples))
            elif event.type == "audio.start":
                request_id = str(event.message["request_id"])
            elif event.type == "session.done":
                return request_id
        raise SpeechError({"message": "the server closed the connection", "code": "closed"})

    async def _send_text(self, speech: SpeechClient, utterance: Utterance) -> None:
        if not utterance.text_tokens_per_s:
            await speech.write(utterance.text)
        else:
            started_s = self._clock()
            for at_s, piece in text_at_rate(utterance.text, utterance.text_tokens_per_s):
                await asyncio.sleep(max(0.0, started_s + at_s - self._clock()))
                await speech.write(piece)
        await speech.done()


def _fields(utterance: Utterance) -> dict[str, object]:
    """Request fields shared by HTTP and WebSocket."""
    clone = {"ref_audio": base64.b64encode(utterance.reference).decode(), "ref_text": utterance.transcript}
    return {
        "instructions": utterance.instruct,
        "seed": utterance.seed,
        "packet_frames": list(utterance.packet_frames) or None,
        "max_new_tokens": utterance.max_frames,
        "non_streaming_mode": False,
        **(clone if utterance.reference else {}),
    }


def _paced_text(utterance: Utterance) -> Iterator[str]:
    """Yield the text at the rate of an LLM's output."""
    started_s = time.monotonic()
    for at_s, piece in text_at_rate(utterance.text, utterance.text_tokens_per_s):
        time.sleep(max(0.0, started_s + at_s - time.monotonic()))
        yield piece


# --- local server ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LocalServer:
    """A server's URL, and its record of a request by the request's id."""

    url: str
    server_record: Callable[[str], ServerRecord]


@contextmanager
def serve_locally(tts: Legato) -> Iterator[LocalServer]:
    """Serve `tts` on a free port, in a thread of this process, until the block ends.

    The server does not warm up, so that the cost of a first request is measured. The model is not closed.
    """
    config = ServerConfig(port=0, warm_up=False)
    app = create_app(tts, config)
    state = app.state.legato
    assert isinstance(state, ServerState)
    ports: list[int] = []
    started = threading.Event()

    def on_listening(port: int) -> None:
        ports.append(port)
        started.set()

    def server_record(request_id: str) -> ServerRecord:
        found = state.records.find(request_id)
        if found is None:
            raise StateError(f"the server has no record of {request_id!r}")
        return found

    server = make_server(app, config, on_listening=on_listening)
    thread = threading.Thread(target=server.run, name="legato-bench-server")
    thread.start()
    try:
        if not started.wait(SERVER_START_TIMEOUT_S):
            raise StateError(f"the server did not start within {SERVER_START_TIMEOUT_S:g} s")
        yield LocalServer(f"http://127.0.0.1:{ports[0]}", server_record)
    finally:
        server.should_exit = True
        thread.join()
