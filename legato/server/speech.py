"""`POST /v1/audio/speech`: one text in, its sound out while it is made, as bytes of a format or as events.

Owns one request from its body to its last byte. The answer begins with the first packet, so that whatever goes wrong
before has a status of its own; what goes wrong later breaks the body off, so that no client takes a part for the whole.
A client that leaves, or that takes nothing for too long, ends its stream. Encoding runs in threads.
"""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import time
from collections.abc import Mapping
from urllib.parse import quote

from fastapi import APIRouter, Request, Response
from starlette.types import Receive, Scope, Send

from legato.audio.formats import AudioFormat
from legato.errors import LegatoError, UnsupportedError
from legato.flow import FinishReason, Packet
from legato.server.bodies import read_fields
from legato.server.bridge import AsyncStream
from legato.server.departure import ClientLeftError, RequestTimeoutError, while_connected
from legato.server.encoding import SpeechEncoding, chosen_format, chosen_rate, patched
from legato.server.errors import ApiError, api_error, error_body
from legato.server.records import RequestRecord, timing_json, usage
from legato.server.reports import words_json
from legato.server.schemas import SpeechBody, body_schema, parse_speech
from legato.server.speech_request import build, check_options, check_text, checked_recording
from legato.server.state import ServerState, state_of

log = logging.getLogger("legato.server")
router = APIRouter()

ROUTE = "/v1/audio/speech"
_UPLOADS = ("ref_audio", "audio_sample", "file")
_AUDIO = {kind.media_type: {"schema": {"type": "string", "format": "binary"}} for kind in AudioFormat}


@router.post(
    ROUTE,
    summary="Speak a text",
    response_class=Response,
    responses={200: {"description": "Sound, or events", "content": {**_AUDIO, "text/event-stream": {}}}},
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
    """Check everything that can be checked without the engine; the answer does the rest."""
    state = state_of(request)
    fields, upload, form = await read_fields(request, _UPLOADS)
    body = parse_speech(dict(fields), form=form)
    if not state.readiness.ready:
        raise ApiError(503, "not_ready", "the server is starting or stopping", headers={"Retry-After": "2"})
    state.names.check_model(body.model)
    kind = chosen_format(body.response_format)
    rate_hz = chosen_rate(body.sample_rate, state.tts.sample_rate_hz, kind)
    check_text(state, body.input)
    check_options(state, body)
    if body.word_timestamps and not as_events(body):
        raise UnsupportedError(
            'word_timestamps come as events: ask for "stream_format": "sse"', field="word_timestamps"
        )
    recording = checked_recording(upload, state.config.reference_bytes) if upload else b""
    record = RequestRecord(id=request.state.request_id, route=ROUTE, response_format=kind.value, sample_rate_hz=rate_hz)
    return SpeechAnswer(state, record, body, kind, recording)


def as_events(body: SpeechBody) -> bool:
    """Whether the answer is events; the rest is one body of sound."""
    return body.stream_format == "sse" or (body.stream_format is None and body.stream is True)


class SpeechAnswer(Response):
    """Everything from the engine's first packet to the last byte of the body."""

    def __init__(
        self, state: ServerState, record: RequestRecord, body: SpeechBody, kind: AudioFormat, recording: bytes
    ) -> None:
        super().__init__()
        self._state = state
        self._record = record
        self._body = body
        self._kind = kind
        self._recording = recording
        self._started = False
        self._words_told = 0
        self._events = as_events(body)
        self._whole = body.stream is False and not self._events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002  ASGI's signature
        """Serve, and account for how it ended."""
        record = self._record
        self._state.records.add(record)
        self._state.metrics.began(ROUTE)
        try:
            await while_connected(receive, self._serve(send), limit_s=self._state.config.request_s)
        except ClientLeftError:
            record.status, record.finish_reason = "cancelled", "cancelled"
            log.info("%s its client left after %d frames", record.id, record.frames)
        except (LegatoError, ApiError, RequestTimeoutError) as error:
            await self._failed(error, send)
        except BaseException:
            record.status, record.error_code = "failed", "internal_error"
            raise
        finally:
            self._state.metrics.ended(ROUTE, record.status, record.finish_reason or record.error_code)

    async def _failed(self, error: LegatoError | ApiError | RequestTimeoutError, send: Send) -> None:
        """Refuse with a status while there is none; later tell it in an event, or break the body off."""
        if isinstance(error, RequestTimeoutError):
            told = ApiError(504, "timeout", f"stopped: {error}")
        else:
            told = api_error(error) if isinstance(error, LegatoError) else error
        record = self._record
        record.status = "failed" if told.status >= 500 else "refused"
        record.error_code, record.error_message = told.code, str(told)
        if not self._started:
            raise told
        log.warning("%s broke off after %d frames: %s", record.id, record.frames, told)
        if self._events and not isinstance(error, RequestTimeoutError):
            event = {"type": "speech.audio.error", **error_body(told), "action": "discard", "request_id": record.id}
            await send({"type": "http.response.body", "body": _event(event), "more_body": False})

    async def _serve(self, send: Send) -> None:
        state, record = self._state, self._record
        asked = await build(state, self._body, self._recording)
        self._recording = b""
        own_hz = state.tts.sample_rate_hz
        encoding = SpeechEncoding(self._kind, own_hz, record.sample_rate_hz, patchable=self._whole)
        async with await state.bridge.open(asked, self._body.input) as stream:
            record.timings.append(stream.timing)
            record.notes, record.status = stream.notes, "speaking"
            held: list[bytes] = []
            async for packet in stream:
                record.input_tokens = stream.handle.text_tokens
                if packet.finish_reason is FinishReason.CANCELLED:  # not by the client, which would have ended us
                    raise ApiError(503, "engine_closed", "the engine stopped before the end of the speech")
                data = await self._encode(encoding, packet, record)
                if self._whole:
                    held.append(data)
                    continue
                if not self._started:
                    await self._start(send, stream)
                await self._send(send, data, packet, stream)
            record.status = "finished"
            if self._whole:
                whole = patched(b"".join(held), encoding.patches)
                await self._start(send, stream, length=len(whole))
                await self._body_part(send, whole, more=False)

    async def _encode(self, encoding: SpeechEncoding, packet: Packet, record: RequestRecord) -> bytes:
        before_s = encoding.seconds
        data = await self._state.bridge.in_thread(encoding.take, packet)
        self._state.metrics.encoded(self._kind.value, encoding.seconds - before_s)
        record.encode_s = encoding.seconds
        record.frames += packet.frames
        record.samples += round(packet.sample_count * record.sample_rate_hz / packet.sample_rate_hz)
        if packet.last and packet.finish_reason:
            record.finish_reason = packet.finish_reason.value
        return data

    async def _start(self, send: Send, stream: AsyncStream, length: int | None = None) -> None:
        """The status and the headers."""
        stages = stream.timing.stages_s().items()
        headers = {
            "Content-Type": "text/event-stream; charset=utf-8" if self._events else self._kind.media_type,
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
        self._started = True
        raw = [(name.lower().encode(), value.encode("latin-1")) for name, value in headers.items()]
        await send({"type": "http.response.start", "status": 200, "headers": raw})

    async def _send(self, send: Send, data: bytes, packet: Packet, stream: AsyncStream) -> None:
        """What one packet gave: bytes, or events, and the end of the body with the last one."""
        if self._events:
            body = self._words(stream)
            if data:
                audio = base64.b64encode(data).decode()
                body += _event({"type": "speech.audio.delta", "audio": audio, "response_format": self._kind.value})
            data = body + (_event(self._done(stream)) if packet.last else b"")
        if data or packet.last:
            if not self._record.bytes_sent:
                self._state.metrics.sent(ROUTE, stream.timing, time.monotonic())
            await self._body_part(send, data, more=not packet.last)

    def _words(self, stream: AsyncStream) -> bytes:
        """The words that became known since the last packet, where the client asked for them."""
        if not self._body.word_timestamps:
            return b""
        config = self._state.tts.model.config.codec
        fresh = stream.handle.words(config.frame_samples)[self._words_told :]
        self._words_told += len(fresh)
        told = words_json(fresh, self._body.input, config.sample_rate_hz)
        return _event({"type": "speech.audio.timestamps", "words": told}) if fresh else b""

    async def _body_part(self, send: Send, data: bytes, *, more: bool) -> None:
        """Hand bytes to the socket; a client that takes none for too long counts as one that left."""
        message = {"type": "http.response.body", "body": data, "more_body": more}
        try:
            await asyncio.wait_for(send(message), self._state.config.stall_s)
        except asyncio.TimeoutError as error:
            raise RequestTimeoutError(f"the client took nothing for {self._state.config.stall_s:g} s") from error
        self._record.bytes_sent += len(data)

    def _done(self, stream: AsyncStream) -> dict[str, object]:
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
    """One server-sent event."""
    return f"data: {json.dumps(body, separators=(',', ':'))}\n\n".encode()
