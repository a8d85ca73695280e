"""The ways to a model: in this process, over HTTP, over a WebSocket, the latter two through the project's own client.

A way speaks one utterance and tells when which sound arrived, by the client's clock, and what the engine's side has to
say about it. It blocks its thread; any number of threads may use one way. All ways ask for the same: the text laid out
as it streams, raw samples, the same seed. Knows no percentile.
"""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

from legato.api import CloneReference, Legato
from legato.bench.listener import Piece
from legato.bench.workload import Utterance, paced
from legato.client.http import BrokenOffError, Client, ServerError
from legato.client.socket import Sound, SpeechClient, SpeechError
from legato.engine.resolve import SpeechRequest
from legato.errors import InputError, LegatoError
from legato.flow import TextLayout
from legato.server.records import RequestRecord as Account

IN_PROCESS, HTTP, WEBSOCKET = "in-process", "http", "websocket"
LAYOUT = TextLayout.STREAMING


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of one utterance. `accounts`: the server's record of it, or none where it was not taken.

    `error_code` is that of the error that ended it, or "".
    """

    asked_s: float
    pieces: tuple[Piece, ...]
    accounts: tuple[Account, ...] = ()
    error_code: str = ""


class Way(Protocol):
    """One way to ask."""

    @property
    def name(self) -> str:
        """As records call it."""

    def speak(self, utterance: Utterance) -> Answer:
        """Ask, and take everything that comes."""


class InProcess:
    """Through `legato.api`, in the calling thread."""

    name = IN_PROCESS

    def __init__(self, tts: Legato, clock: Callable[[], float] = time.monotonic) -> None:
        self._tts = tts
        self._clock = clock

    def speak(self, utterance: Utterance) -> Answer:
        """Ask the engine."""
        asked_s = self._clock()
        pieces: list[Piece] = []
        account = Account(id="", route=IN_PROCESS, sample_rate_hz=self._tts.sample_rate_hz)
        try:
            handle = self._tts.open(self._request(utterance), whole_text=not utterance.text_tokens_s).handle
            account.timings.append(handle.timing)
            handle.feed(_written(utterance) if utterance.text_tokens_s else utterance.text)
            for packet in handle:
                if packet.sample_count:
                    pieces.append((self._clock(), packet.int16()))
                account.frames += packet.frames
                account.finish_reason = packet.finish_reason.value if packet.finish_reason else ""
                account.input_tokens = handle.text_tokens
        except LegatoError as error:
            return Answer(asked_s, tuple(pieces), error_code=error.code)
        return Answer(asked_s, tuple(pieces), (account,))

    def _request(self, utterance: Utterance) -> SpeechRequest:
        clone = CloneReference(utterance.reference, utterance.transcript)
        return SpeechRequest(
            instruct=utterance.instruct,
            reference=self._tts.reference(clone) if utterance.reference else None,
            layout=LAYOUT,
            seed=utterance.seed,
            packet_frames=utterance.packet_frames,
            max_frames=utterance.max_frames,
        )


class OverHttp:
    """One `POST /v1/audio/speech` on a connection of its own; the text is there as a whole."""

    name = HTTP

    def __init__(
        self, url: str, account: Callable[[str], Account], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`account` gives the server's record of a request by its id."""
        self._client = Client(url)
        self._account = account
        self._clock = clock

    def speak(self, utterance: Utterance) -> Answer:
        """Ask the server."""
        if utterance.text_tokens_s:
            raise InputError("HTTP takes the whole text: measure text in pieces in-process or over websocket")
        asked_s = self._clock()
        pieces: list[Piece] = []
        try:
            with self._client.speak(utterance.text, response_format="pcm", **_fields(utterance)) as body:
                pieces += ((self._clock(), samples) for samples in body.pcm())
                return Answer(asked_s, tuple(pieces), (self._account(body.request_id),))
        except ServerError as error:
            return Answer(asked_s, tuple(pieces), error_code=error.code)
        except BrokenOffError:
            return Answer(asked_s, tuple(pieces), error_code="broken_off")


class OverSocket:
    """One utterance on a socket that is open and configured already, as a voice agent has it."""

    name = WEBSOCKET

    def __init__(
        self, url: str, account: Callable[[str], Account], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`account` gives the server's record of a request by its id."""
        self._url = url.replace("http", "ws", 1)
        self._account = account
        self._clock = clock

    def speak(self, utterance: Utterance) -> Answer:
        """Connect, then ask."""
        return asyncio.run(self._speak(utterance))

    async def _speak(self, utterance: Utterance) -> Answer:
        pieces: list[Piece] = []
        asked_s = self._clock()
        try:
            async with SpeechClient(self._url, {**_fields(utterance), "response_format": "pcm"}) as speech:
                asked_s = self._clock()
                writing = asyncio.ensure_future(self._write(speech, utterance))
                request_ids = await self._listen(speech, pieces)
                await writing
        except SpeechError as error:
            return Answer(asked_s, tuple(pieces), error_code=error.server_code)
        return Answer(asked_s, tuple(pieces), tuple(map(self._account, request_ids)))

    async def _listen(self, speech: SpeechClient, pieces: list[Piece]) -> list[str]:
        """Take sound until the utterance is over; returns the server's id of it."""
        request_ids: list[str] = []
        async for event in speech.events():
            if isinstance(event, Sound):
                pieces.append((self._clock(), event.samples))
            elif event.type == "audio.start":
                request_ids.append(str(event.message["request_id"]))
            elif event.type == "session.done":
                return request_ids
        raise SpeechError({"message": "the server closed the connection", "code": "closed"})

    async def _write(self, speech: SpeechClient, utterance: Utterance) -> None:
        if not utterance.text_tokens_s:
            await speech.write(utterance.text)
        else:
            began_s = self._clock()
            for at_s, piece in paced(utterance.text, utterance.text_tokens_s):
                await asyncio.sleep(max(0.0, began_s + at_s - self._clock()))
                await speech.write(piece)
        await speech.done()


def _fields(utterance: Utterance) -> dict[str, object]:
    """The fields that both routes share."""
    clone = {"ref_audio": base64.b64encode(utterance.reference).decode(), "ref_text": utterance.transcript}
    return {
        "instructions": utterance.instruct,
        "seed": utterance.seed,
        "packet_frames": list(utterance.packet_frames),
        "max_new_tokens": utterance.max_frames,
        "non_streaming_mode": False,
        **(clone if utterance.reference else {}),
    }


def _written(utterance: Utterance) -> Iterator[str]:
    """The text as a language model writes it."""
    began_s = time.monotonic()
    for at_s, piece in paced(utterance.text, utterance.text_tokens_s):
        time.sleep(max(0.0, began_s + at_s - time.monotonic()))
        yield piece
