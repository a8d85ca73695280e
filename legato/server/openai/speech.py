"""`POST /v1/audio/speech`: synthesize one text and stream the audio, as encoded bytes or server-sent events.

The response starts with the first packet, so errors before it have their own HTTP status. A later error aborts the body
(or sends an error event), so that clients never mistake partial audio for the whole. The stream is cancelled when the
client disconnects or stops reading for too long. Encoding runs in threads.
"""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import time
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any
from urllib.parse import quote

from fastapi import APIRouter, Request, Response
from starlette.types import Receive, Scope, Send

from legato.audio.encoders import WAV_HEADER_BYTES, header_bytes
from legato.audio.formats import AudioFormat
from legato.errors import LegatoError, UnsupportedError
from legato.server.bodies import RequestBody, read_body, read_query
from legato.server.bridge import AsyncStream
from legato.server.client_limits import client_of
from legato.server.disconnect import ClientDisconnectedError, RequestTimeoutError, while_connected
from legato.server.encoding import StreamEncoder, apply_patches, resolve_format, resolve_sample_rate
from legato.server.errors import ApiError, api_error, error_body
from legato.server.openai.held_body import HeldBody
from legato.server.openai.schemas import SpeechRequestBody, body_schema, parse_speech_request, query_parameters
from legato.server.openai.speech_request import build_request, check_options, check_recording, check_text
from legato.server.request_records import RequestRecord, timing_json, usage
from legato.server.session_json import words_json
from legato.server.state import ServerState, state_of
from legato.types import FinishReason, Packet

log = logging.getLogger("legato.server")
router = APIRouter()

ROUTE = "/v1/audio/speech"
_KNOWN_SOON_S = 0.5
"""Time for reading the rest of a long text, if the length of the speech depends on the text only."""
_COMMENT = b": waiting\n\n"
"""A server-sent comment, which clients ignore."""
_UPLOAD_NAMES = ("ref_audio", "audio_sample", "file")
_AUDIO_CONTENT = {kind.media_type: {"schema": {"type": "string", "format": "binary"}} for kind in AudioFormat}
_RESPONSES: dict[int | str, dict[str, Any]] = {
    200: {"description": "Audio or events", "content": {**_AUDIO_CONTENT, "text/event-stream": {}}}
}


@router.post(
    ROUTE,
    summary="Synthesize speech",
    response_class=Response,
    responses=_RESPONSES,
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {
                "application/json": {"schema": body_schema(form=False)},
                "multipart/form-data": {"schema": body_schema(form=True)},
            },
        }
    },
)
async def speech(request: Request) -> Response:
    """Synthesize a text; the fields are in a JSON body or a form."""
    return _respond(request, await read_body(request, upload_names=_UPLOAD_NAMES))


@router.get(
    ROUTE,
    summary="Synthesize speech, with the fields in the query",
    response_class=Response,
    responses=_RESPONSES,
    openapi_extra={"parameters": query_parameters()},
)
async def speech_by_query(request: Request) -> Response:
    """The same for players and pages, which can only fetch a URL: `<audio src="/v1/audio/speech?input=Hello.">`."""
    return _respond(request, read_query(request.url.query))


def _respond(request: Request, received: RequestBody) -> Response:
    """Validate everything that does not need the engine; the returned response does the rest."""
    state = state_of(request)
    body = parse_speech_request(received.fields, form=received.is_form)
    state = state.for_model(body.model)
    state.check_ready()
    kind = resolve_format(body.response_format)
    rate_hz = resolve_sample_rate(body.sample_rate, state.tts.sample_rate_hz, kind)
    check_text(state, body.input)
    check_options(state, body)
    if body.word_timestamps and not wants_events(body):
        raise UnsupportedError(
            'word_timestamps are sent as events: also set "stream_format": "sse"', field="word_timestamps"
        )
    recording = check_recording(received.upload, state.config.reference_bytes) if received.upload else None
    record = RequestRecord(id=request.state.request_id, route=ROUTE, response_format=kind.value, sample_rate_hz=rate_hz)
    return SpeechResponse(
        state,
        record,
        body,
        kind=kind,
        recording=recording,
        client=client_of(request),
        release_body=request.state.release_body,
    )


def wants_events(body: SpeechRequestBody) -> bool:
    """Whether the response consists of server-sent events instead of plain audio bytes."""
    return body.stream_format == "sse" or (body.stream_format is None and body.stream is True)


class SpeechResponse(Response):
    """Runs one request from opening the engine stream to the last byte of the body."""

    def __init__(
        self,
        state: ServerState,
        record: RequestRecord,
        body: SpeechRequestBody,
        *,
        kind: AudioFormat,
        recording: bytes | None,
        client: str,
        release_body: Callable[[], None],
    ) -> None:
        """`client`: whose stream this is (`client_limits.py`). `release_body` is called when the request does not hold
        its recording any more."""
        super().__init__()
        self._state = state
        self._record = record
        self._body = body
        self._kind = kind
        self._recording = recording
        self._client = client
        self._release_body = release_body
        self._started = False
        self._audio_sent = False
        self._words_sent = 0
        self._as_events = wants_events(body)
        self._buffered = body.stream is False and not self._as_events
        """Send the complete file at the end, with exact sizes, instead of streaming."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002  ASGI's signature
        """Serve the request and record its outcome."""
        record = self._record
        self._state.records.add(record)
        self._state.metrics.request_started(ROUTE)
        try:
            with self._state.drain.track():
                await while_connected(
                    receive, self._serve(send), limit_s=self._state.config.request_s, stop=self._state.drain.expired
                )
        except ClientDisconnectedError:
            record.status, record.finish_reason = "cancelled", "cancelled"
            log.info("%s client disconnected after %d frames", record.id, record.frames)
        except (LegatoError, ApiError, RequestTimeoutError) as error:
            await self._fail(error, send)
        except BaseException:
            record.status, record.error_code = "failed", "internal_error"
            raise
        finally:
            self._state.metrics.request_finished(ROUTE, record.status, record.finish_reason or record.error_code)

    async def _fail(self, error: LegatoError | ApiError | RequestTimeoutError, send: Send) -> None:
        """Before the first byte, raise an error response; after it, send an error event or leave the body incomplete.

        Returning without the final body message makes the server close the connection, which HTTP clients report as an
        incomplete body.
        """
        if isinstance(error, RequestTimeoutError):
            failure = ApiError(504, "timeout", f"request stopped: {error}")
        else:
            failure = api_error(error, self._record.id) if isinstance(error, LegatoError) else error
        record = self._record
        record.status = "failed" if failure.status >= 500 else "refused"
        record.error_code, record.error_message = failure.code, str(failure)
        if not self._started:
            raise failure
        log.warning("%s response aborted after %d frames: %s", record.id, record.frames, failure)
        if self._as_events and not isinstance(error, RequestTimeoutError):
            event = {"type": "speech.audio.error", **error_body(failure), "action": "discard", "request_id": record.id}
            await send({"type": "http.response.body", "body": _event(event), "more_body": False})

    async def _serve(self, send: Send) -> None:
        with self._state.clients.stream(self._client):
            await self._speak(send)

    async def _speak(self, send: Send) -> None:
        state, record = self._state, self._record
        request = await build_request(state, self._body, self._recording)
        # Up to 50 MiB: free the recording before the request waits for a slot.
        self._recording = None
        self._body = self._body.model_copy(update={"ref_audio": ""})
        self._release_body()
        async with await state.bridge.open(request, self._body.input, request_id=record.id) as stream:
            record.timing = stream.timing
            record.notes, record.status = stream.notes, "speaking"
            rates = (state.tts.sample_rate_hz, record.sample_rate_hz)
            encoder = StreamEncoder(self._kind, *rates, patchable=self._buffered)
            try:
                await self._stream(send, stream, encoder)
            finally:
                encoder.abort()

    async def _stream(self, send: Send, stream: AsyncStream, encoder: StreamEncoder) -> None:
        """Encode and send the packets. Nothing is sent before the header is there, with the length if possible."""
        record, held = self._record, HeldBody(self._kind, self._hold_s(), needs_header=not self._as_events)
        async for packet in self._packets(send, stream):
            record.input_tokens = stream.handle.text_tokens
            # A disconnect ends this coroutine, so a cancelled stream here means that the engine is shutting down.
            if packet.finish_reason is FinishReason.CANCELLED:
                raise ApiError(503, "engine_closed", "the engine stopped before the end of the speech")
            known = self._known_samples(stream)
            promised = None if known is None or self._started else encoder.promise_length(known)
            held.add(await self._encode(encoder, packet))
            if self._started:
                await self._send_packet(send, held.take(), packet, stream)
            elif promised is not None and held.has_header:
                wav_bytes = WAV_HEADER_BYTES + 2 * promised if self._kind is AudioFormat.WAV else None
                await self._start(send, stream, wav_bytes)
                await self._send_packet(send, held.take(promised), packet, stream)
            elif held.due and (self._as_events or not packet.last):
                await self._start(send, stream)
                await self._send_packet(send, held.take(), packet, stream)
        record.status = "finished"
        if not self._started:
            whole = apply_patches(held.take(), encoder.patches)
            await self._start(send, stream, len(whole))
            await self._send_body(send, whole, more=False)

    def _hold_s(self) -> float:
        """How long the body is held back, so that its header can have the length."""
        if self._buffered:
            return float("inf")
        if self._as_events or self._body.stream is not None or self._body.stream_format is not None:
            return 0.0
        if self._kind is AudioFormat.WAV and self._state.tts.model.config.kind == "embedded":
            return _KNOWN_SOON_S
        return self._state.config.hold_s if self._kind is AudioFormat.FLAC else 0.0

    def _known_samples(self, stream: AsyncStream) -> int | None:
        """Samples of the whole stream, if they are known and the header of a streamed body can state them."""
        if self._buffered or self._as_events or not header_bytes(self._kind):
            return None
        frames = stream.handle.known_frames
        return None if frames is None else frames * self._state.tts.model.config.codec.frame_samples

    async def _packets(self, send: Send, stream: AsyncStream) -> AsyncIterator[Packet]:
        """The packets of `stream`. Raises the error that ended it, if any.

        While an event stream has nothing to send, because its stream waits for a slot, it gets a comment every
        `comment_s`: load balancers close connections that are silent. The response has started then, so that a later
        error is an event.
        """
        comment_s = self._state.config.comment_s if self._as_events else None
        while True:
            try:
                event = await asyncio.wait_for(stream.next_event(), comment_s)
            except asyncio.TimeoutError:
                if not self._started:
                    await self._start(send, stream)
                await self._send_body(send, _COMMENT, more=True)
                continue
            if isinstance(event, LegatoError):
                raise event
            yield event
            if event.last:
                return

    async def _encode(self, encoder: StreamEncoder, packet: Packet) -> bytes:
        record = self._record
        before_s = encoder.seconds
        data = await self._state.bridge.encode(encoder, encoder.encode, packet)
        self._state.metrics.packet_encoded(self._kind.value, encoder.seconds - before_s)
        record.encode_s = encoder.seconds
        record.frames += packet.frames
        record.samples = encoder.samples
        if packet.last and packet.finish_reason:
            record.finish_reason = packet.finish_reason.value
        return data

    async def _start(self, send: Send, stream: AsyncStream, length: int | None = None) -> None:
        """Send the status and headers."""
        stages = stream.timing.stages_s().items()
        headers = {
            "Content-Type": "text/event-stream; charset=utf-8" if self._as_events else self._kind.media_type,
            "Cache-Control": "no-store",
            "X-Sample-Rate": str(self._record.sample_rate_hz),
            "Server-Timing": ", ".join(f"{name.replace(' ', '-')};dur={1000 * s:.1f}" for name, s in stages),
        }
        ignored = sorted(self._body.model_extra or {})
        if ignored:
            headers["X-Ignored-Fields"] = ", ".join(quote(name[:64], safe="") for name in ignored[:32])
        if stream.notes:
            headers["X-Notes"] = "; ".join(stream.notes).encode("ascii", "replace").decode()
        if length is not None:
            headers["Content-Length"] = str(length)
        if self._record.finish_reason:  # the body is complete, or the stream has one packet
            headers["X-Finish-Reason"] = self._record.finish_reason
        self._started = True
        raw = [(name.lower().encode(), value.encode("latin-1")) for name, value in headers.items()]
        await send({"type": "http.response.start", "status": 200, "headers": raw})

    async def _send_packet(self, send: Send, data: bytes, packet: Packet, stream: AsyncStream) -> None:
        """Send the bytes or events of one packet; the last packet ends the body."""
        if self._as_events:
            body = self._word_events(stream)
            if data:
                audio = base64.b64encode(data).decode()
                body += _event({"type": "speech.audio.delta", "audio": audio, "response_format": self._kind.value})
            data = body + (_event(self._done_event(stream)) if packet.last else b"")
        if data or packet.last:
            if not self._audio_sent:
                self._audio_sent = True
                self._state.metrics.first_bytes_sent(ROUTE, stream.timing, time.monotonic())
            await self._send_body(send, data, more=not packet.last)

    def _word_events(self, stream: AsyncStream) -> bytes:
        """An event with the words whose times became known since the last packet, if the client asked for them."""
        if not self._body.word_timestamps:
            return b""
        codec = self._state.tts.model.config.codec
        words = stream.handle.words(codec.frame_samples)[self._words_sent :]
        if not words:
            return b""
        self._words_sent += len(words)
        timestamps = words_json(words, self._body.input, codec.sample_rate_hz)
        return _event({"type": "speech.audio.timestamps", "words": timestamps})

    async def _send_body(self, send: Send, data: bytes, *, more: bool) -> None:
        """Write bytes to the socket. A client that does not read for `stall_s` is treated as disconnected."""
        message = {"type": "http.response.body", "body": data, "more_body": more}
        # Counted first: a client that has the whole body may ask for the record before `send` returns.
        self._record.bytes_sent += len(data)
        try:
            await asyncio.wait_for(send(message), self._state.config.stall_s)
        except asyncio.TimeoutError as error:
            self._record.bytes_sent -= len(data)
            raise RequestTimeoutError(f"the client read nothing for {self._state.config.stall_s:g} s") from error

    def _done_event(self, stream: AsyncStream) -> dict[str, object]:
        record = self._record
        return {
            "type": "speech.audio.done",
            "usage": usage(record.input_tokens, record.frames),
            "finish_reason": record.finish_reason,
            "request_id": record.id,
            "sample_rate": record.sample_rate_hz,
            "samples": record.samples,
            "timing": timing_json(stream.timing, encode_s=record.encode_s),
            "notes": list(record.notes),
        }


def _event(body: Mapping[str, object]) -> bytes:
    """Format one server-sent event."""
    return f"data: {json.dumps(body, separators=(',', ':'))}\n\n".encode()
