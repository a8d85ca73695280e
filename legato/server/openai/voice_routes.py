"""`/v1/audio/voices`: list, upload and delete voices.

An uploaded recording is decoded and checked in a thread, then stored as the samples that the model uses.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Annotated, Literal, ParamSpec, TypeVar

from fastapi import APIRouter, Query, Request
from fastapi.responses import JSONResponse

from legato.audio.reference import load_reference
from legato.errors import InputError
from legato.server.bodies import read_body
from legato.server.bridge import Pool
from legato.server.errors import ApiError
from legato.server.openai.speech_request import check_recording, cloning_unsupported, supports_cloning
from legato.server.state import ServerState, state_of
from legato.server.voices import UploadedVoice, validate_name
from legato.text.prompt import allowed_languages

P = ParamSpec("P")
T = TypeVar("T")

log = logging.getLogger("legato.server")
router = APIRouter()

DISK_S = 30.0
"""Time that storing or deleting a voice may take."""
MAX_TRANSCRIPT = 4000
_UPLOAD_NAMES = ("audio_sample", "ref_audio", "file")
_FORM = {
    "type": "object",
    "required": ["name", "audio_sample"],
    "properties": {
        "name": {"type": "string", "description": "Name of the voice."},
        "audio_sample": {
            "type": "string",
            "format": "binary",
            "description": "The reference recording. Also accepted as file or ref_audio.",
        },
        "ref_text": {"type": "string", "description": "Transcript of the recording; improves speaker similarity."},
    },
}


@router.get("/v1/audio/voices", summary="List voices")
async def voices(
    request: Request, model: str = "", form: Annotated[Literal["objects", "names"], Query(alias="format")] = "objects"
) -> dict[str, object]:
    """The voices that a model speaks (the default model without `model`), and details of uploaded voices.

    `voices` are objects; the `id` of each is a value of `voice` in requests. With `format=names` they are strings.
    """
    state = state_of(request).for_model(model)
    names = state.names
    uploaded = [_voice_json(voice) for voice in names.uploaded()]
    if form == "names":
        return {"voices": [*names.voice_names(), *names.voice_aliases()], "uploaded_voices": uploaded}
    languages = list(allowed_languages(state.tts.model.config.talker))
    listed = [_voice_entry(name, "built-in", languages) for name in names.speakers]
    listed += [_voice_entry(voice.name, "uploaded", languages) | {"voice_id": voice.id} for voice in names.uploaded()]
    listed += [
        _voice_entry(n, "alias", languages) | {"alias_of": target} for n, target in names.voice_aliases().items()
    ]
    return {"voices": listed, "uploaded_voices": uploaded}


def _voice_entry(name: str, kind: str, languages: list[str]) -> dict[str, object]:
    return {"id": name, "name": name, "object": "audio.voice", "kind": kind, "languages": languages}


@router.post(
    "/v1/audio/voices",
    status_code=201,
    summary="Upload a voice to clone",
    openapi_extra={"requestBody": {"required": True, "content": {"multipart/form-data": {"schema": _FORM}}}},
)
async def upload(request: Request) -> JSONResponse:
    """Store a recording as a named voice, replacing an uploaded voice with the same name.

    All models that clone can use it. Names of built-in voices of any model are refused.
    """
    models = state_of(request).models
    state = next((model for model in models if supports_cloning(model.tts)), models[0])
    body = await read_body(request, upload_names=_UPLOAD_NAMES)
    if not body.is_form:
        raise ApiError(415, "unsupported_media_type", "send multipart/form-data with name and audio_sample")
    if not supports_cloning(state.tts):
        raise cloning_unsupported(state)
    if not body.upload:
        raise ApiError(400, "invalid_request", "the form has no file audio_sample", param="audio_sample")
    name = validate_name(str(body.fields.get("name", "")))
    transcript = str(body.fields.get("ref_text", "")).strip()
    if len(transcript) > MAX_TRANSCRIPT:
        raise InputError(f"ref_text has {len(transcript)} characters: the limit is {MAX_TRANSCRIPT}", field="ref_text")
    if any(name.lower() in model.names.speakers for model in models):
        raise InputError(f"{name!r} is a built-in voice of the model: choose another name", field="name")
    recording = check_recording(body.upload, state.config.reference_bytes)
    began = await _on_disk(state, state.voices.snapshot, name)
    rate_hz = state.tts.sample_rate_hz
    samples = await state.bridge.in_thread(Pool.REFERENCE, load_reference, recording, rate_hz)
    voice = await _on_disk(state, state.voices.add, name, samples, rate_hz, transcript, began=began)
    _audit(request, "kept", voice)
    return JSONResponse(_voice_json(voice), status_code=201)


@router.delete("/v1/audio/voices/{voice}", summary="Delete an uploaded voice")
async def delete(request: Request, voice: str) -> dict[str, object]:
    """Delete an uploaded voice by id or name."""
    state = state_of(request)
    deleted = await _on_disk(state, state.voices.delete, voice)
    _audit(request, "deleted", deleted)
    return {"id": deleted.id, "name": deleted.name, "object": "audio.voice.deleted", "deleted": True}


async def _on_disk(state: ServerState, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run disk work in a thread. A disk that hangs ends the request after `DISK_S`; the work may still finish later."""
    try:
        return await asyncio.wait_for(state.bridge.in_thread(Pool.DISK, work, *args, **kwargs), DISK_S)
    except asyncio.TimeoutError as error:
        raise ApiError(
            503, "storage_unavailable", f"the folder of voices did not respond within {DISK_S:g} s: retry later"
        ) from error


def _audit(request: Request, action: str, voice: UploadedVoice) -> None:
    """Log who keeps or deletes a voice: recordings are personal data."""
    client = request.client.host if request.client else "-"
    key = getattr(request.state, "key_name", None)
    fields = {"request_id": request.state.request_id, "voice": voice.id, "action": action, "client": client, "key": key}
    line = "%s voice %s: %s %r (client %s, key %s)"
    values = (request.state.request_id, action, voice.id, voice.name, client, key or "-")
    log.info(line, *values, extra={"fields": fields})


def _voice_json(voice: UploadedVoice) -> dict[str, object]:
    return {
        "id": voice.id,
        "name": voice.name,
        "object": "audio.voice",
        "created_at": voice.created_s,
        "seconds": voice.seconds,
        "ref_text": voice.transcript,
    }
