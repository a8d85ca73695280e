"""DashScope's HTTP route for Qwen-TTS, as `MultiModalConversation.call` of its SDK uses it.

The answer has the URL of a WAV file on this server. With the header `X-DashScope-SSE: enable`, the audio is sent as
events while it is generated (base64, s16le), and the URL comes last. Errors are in the protocol's own form.
"""

from __future__ import annotations

import asyncio
import base64
import json
import logging
from collections.abc import Mapping

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from legato.errors import InputError, LegatoError
from legato.server.bodies import read_body
from legato.server.client_limits import client_of
from legato.server.dashscope.settings import known_voice
from legato.server.disconnect import ClientDisconnectedError, RequestTimeoutError, while_connected
from legato.server.errors import ApiError, api_error, error_body
from legato.server.fields import Fields
from legato.server.finished_files import FinishedFiles
from legato.server.openai.schemas import SpeechRequestBody
from legato.server.openai.whole_speech import SpokenFile, synthesize
from legato.server.request_records import RequestRecord
from legato.server.state import ServerState, state_of
from legato.types import Packet

log = logging.getLogger("legato.server")
router = APIRouter()

ROUTE = "/api/v1/services/aigc/multimodal-generation/generation"
FILES_ROUTE = "/v1/audio/files"
_BODY = {
    "type": "object",
    "required": ["input"],
    "properties": {
        "model": {"type": "string", "description": "A model of this server; other names select the default model."},
        "input": {
            "type": "object",
            "required": ["text"],
            "properties": {name: {"type": "string"} for name in ("text", "voice", "language_type")},
        },
        "parameters": {"type": "object", "description": "instructions, seed, speech_rate, sample_rate."},
    },
}


@router.post(
    ROUTE,
    summary="Synthesize speech (DashScope)",
    response_class=Response,
    responses={200: {"description": "A URL, or events", "content": {"application/json": {}, "text/event-stream": {}}}},
    openapi_extra={"requestBody": {"required": True, "content": {"application/json": {"schema": _BODY}}}},
)
async def generation(request: Request) -> Response:
    """Speak a text; answers with the URL of a WAV file, or with events."""
    default = state_of(request)
    request_id = request.state.request_id
    try:
        received = await read_body(request, upload_names=())
        if received.is_form:
            raise ApiError(415, "unsupported_media_type", "send application/json")
        body, ignored = _speech_request(default, Fields(dict(received.fields)))
    except (ApiError, LegatoError) as error:
        return _error_response(error, request_id)
    record = RequestRecord(id=request_id, route=ROUTE)
    as_events = request.headers.get("x-dashscope-sse", "").lower() == "enable"
    files: FinishedFiles = request.app.state.finished_files
    base_url = str(request.base_url).rstrip("/")
    return _GenerationResponse(
        default, body, ignored, record, files, base_url=base_url, client=client_of(request), as_events=as_events
    )


@router.get(FILES_ROUTE + "/{name}", summary="Fetch a finished file", response_class=Response)
async def finished_file(request: Request, name: str) -> Response:
    """A file whose URL the server has sent, for an hour."""
    files: FinishedFiles = request.app.state.finished_files
    file = files.find(name)
    if file is None:
        raise ApiError(404, "not_found", "there is no such file, or not any more: files are kept for an hour")
    return Response(file.data, media_type=file.media_type, headers={"Cache-Control": "no-store"})


def _speech_request(default: ServerState, fields: Fields) -> tuple[SpeechRequestBody, list[str]]:
    """The request in the terms of the other routes, and fields without effect. `InputError` for an invalid field."""
    model = default.find_model(fields.text("model")) or default
    given = fields.section("input")
    parameters = fields.section("parameters")
    if given.has("messages"):
        raise InputError("messages are not supported: send input.text", field="input.messages")
    voice = given.text("voice", limit=200)
    body = SpeechRequestBody(
        model=model.config.model_id,
        input=given.text("text", limit=default.config.text_characters),
        voice=known_voice(model, voice),
        language=given.text("language_type", "Auto", limit=64),
        instructions=parameters.text("instructions", limit=4000),
        speed=parameters.number("speech_rate", 1.0, low=0.5, high=2.0),
        seed=parameters.integer("seed", 0, low=0, high=2**64 - 1),
        sample_rate=parameters.integer("sample_rate", model.tts.sample_rate_hz, low=1, high=2**31),
        response_format="wav",
    )
    return body, [*given.unread, *parameters.unread]


class _GenerationResponse(Response):
    """Runs one request."""

    def __init__(
        self,
        state: ServerState,
        body: SpeechRequestBody,
        ignored: list[str],
        record: RequestRecord,
        files: FinishedFiles,
        *,
        base_url: str,
        client: str,
        as_events: bool,
    ) -> None:
        super().__init__()
        self._state = state
        self._body = body
        self._ignored = ignored
        self._record = record
        self._files = files
        self._base_url = base_url
        self._client = client
        self._as_events = as_events
        self._started = False
        self._sent = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve the request."""
        config = self._state.config
        try:
            with self._state.drain.track():
                work = self._stream(send) if self._as_events else self._answer(scope, receive, send)
                await while_connected(receive, work, limit_s=config.request_s, stop=self._state.drain.expired)
        except ClientDisconnectedError:
            log.info("%s client disconnected after %d frames", self._record.id, self._record.frames)
        except (ApiError, RequestTimeoutError) as error:
            failure = error if isinstance(error, ApiError) else ApiError(504, "timeout", f"request stopped: {error}")
            if self._started:
                await self._event(send, _error_body(failure, self._record.id), kind="error", status=failure.status)
                await send({"type": "http.response.body", "body": b"", "more_body": False})
            else:
                await _error_response(failure, self._record.id)(scope, receive, send)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        file = await synthesize(self._state, self._body, self._record, client=self._client)
        await JSONResponse(self._result(self._finished(file), "stop"))(scope, receive, send)

    async def _stream(self, send: Send) -> None:
        """Send packets while the file is made. The response starts with the first one, so that errors have a status."""
        packets: asyncio.Queue[Packet] = asyncio.Queue()
        speaking = asyncio.create_task(
            synthesize(self._state, self._body, self._record, client=self._client, on_packet=packets.put_nowait)
        )
        try:
            while not (speaking.done() and packets.empty()):
                waiting = asyncio.create_task(packets.get())
                await asyncio.wait({waiting, speaking}, return_when=asyncio.FIRST_COMPLETED)
                if not waiting.done():
                    waiting.cancel()
                    continue
                data = base64.b64encode(waiting.result().int16().tobytes()).decode()
                await self._event(send, self._result({"data": data, "url": ""}, "null"))
            await self._event(send, self._result(self._finished(await speaking), "stop"))
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            speaking.cancel()
            await asyncio.gather(speaking, return_exceptions=True)

    def _finished(self, file: SpokenFile) -> dict[str, object]:
        name, kept = self._files.add(file.data, file.kind.media_type, file.kind.value)
        return {"data": "", "url": f"{self._base_url}{FILES_ROUTE}/{name}", "expires_at": int(kept.expires_s)}

    def _result(self, audio: Mapping[str, object], finish_reason: str) -> dict[str, object]:
        record = self._record
        audio_tokens = record.frames
        return {
            "request_id": record.id,
            "output": {"finish_reason": finish_reason, "audio": {"id": f"audio_{record.id}", **audio}},
            "usage": {
                "characters": len(self._body.input),
                "input_tokens": record.input_tokens,
                "output_tokens": audio_tokens,
                "total_tokens": record.input_tokens + audio_tokens,
                "input_tokens_details": {"text_tokens": record.input_tokens},
                "output_tokens_details": {"audio_tokens": audio_tokens, "text_tokens": 0},
            },
            "notes": [*record.notes, *(f"{name} has no effect" for name in self._ignored)],
        }

    async def _event(self, send: Send, body: Mapping[str, object], *, kind: str = "result", status: int = 200) -> None:
        if not self._started:
            self._started = True
            headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-store")]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
        self._sent += 1
        data = json.dumps(body, ensure_ascii=False, separators=(",", ":"))
        event = f"id:{self._sent}\nevent:{kind}\n:HTTP_STATUS/{status}\ndata:{data}\n\n".encode()
        stall_s = self._state.config.stall_s
        try:
            await asyncio.wait_for(send({"type": "http.response.body", "body": event, "more_body": True}), stall_s)
        except asyncio.TimeoutError as error:
            raise RequestTimeoutError(f"the client read nothing for {stall_s:g} s") from error


def _error_body(error: ApiError, request_id: str) -> dict[str, object]:
    """The fields of the protocol, and the error object of the other routes."""
    return {"code": error.code, "message": str(error), "request_id": request_id, **error_body(error)}


def _error_response(error: ApiError | LegatoError, request_id: str) -> JSONResponse:
    failure = api_error(error, request_id) if isinstance(error, LegatoError) else error
    return JSONResponse(_error_body(failure, request_id), status_code=failure.status, headers=failure.headers)
