"""`/v1/audio/voices`: list, upload and delete. Owns nothing; the recordings belong to the `VoiceFolder`.

An upload is decoded and checked in a thread, and kept as the samples that the model will hear.
"""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse

from legato.audio.reference import load_reference
from legato.errors import InputError
from legato.server.bodies import read_fields
from legato.server.errors import ApiError
from legato.server.speech_request import can_clone, cannot_clone, checked_recording
from legato.server.state import ServerState, state_of
from legato.server.voices import KeptVoice, checked_name

router = APIRouter()

_UPLOADS = ("audio_sample", "ref_audio", "file")
_FORM = {
    "type": "object",
    "required": ["name", "audio_sample"],
    "properties": {
        "name": {"type": "string", "description": "What the voice will be called."},
        "audio_sample": {"type": "string", "format": "binary", "description": "The recording; or file, or ref_audio."},
        "ref_text": {"type": "string", "description": "What is said in it; with it the likeness is closest."},
    },
}


@router.get("/v1/audio/voices", summary="All voices")
async def voices(request: Request) -> dict[str, object]:
    """Names that `voice` may have, and the uploaded voices in full."""
    state = state_of(request)
    kept = [_voice(voice) for voice in state.voices.kept()] if can_clone(state.tts) else []
    return {"voices": [*state.names.speakers, *(str(voice["name"]) for voice in kept)], "uploaded_voices": kept}


@router.post(
    "/v1/audio/voices",
    status_code=201,
    summary="Upload a voice to clone",
    openapi_extra={"requestBody": {"required": True, "content": {"multipart/form-data": {"schema": _FORM}}}},
)
async def upload(request: Request) -> JSONResponse:
    """Keep a recording under a name; one of that name is replaced."""
    state = state_of(request)
    fields, data, form = await read_fields(request, _UPLOADS)
    if not form:
        raise ApiError(415, "unsupported_media_type", "send multipart/form-data with name and audio_sample")
    if not can_clone(state.tts):
        raise cannot_clone(state)
    if not data:
        raise ApiError(400, "invalid_request", "the form has no file audio_sample", param="audio_sample")
    name, transcript = (str(fields.get(field, "")).strip() for field in ("name", "ref_text"))
    name = checked_name(name)
    if name.lower() in state.names.speakers:
        raise InputError(f"the model has a voice {name!r} of its own; choose another name", field="name")
    checked_recording(data, state.config.reference_bytes)
    voice = await state.bridge.in_thread(_keep, state, name, data, transcript)
    return JSONResponse(_voice(voice), status_code=201)


@router.delete("/v1/audio/voices/{voice}", summary="Delete an uploaded voice")
async def delete(request: Request, voice: str) -> dict[str, object]:
    """Forget an uploaded voice, by its id or its name."""
    state = state_of(request)
    gone = await state.bridge.in_thread(state.voices.delete, voice)
    return {"id": gone.id, "name": gone.name, "object": "audio.voice.deleted", "deleted": True}


def _keep(state: ServerState, name: str, data: bytes, transcript: str) -> KeptVoice:
    samples = load_reference(data, state.tts.sample_rate_hz)
    return state.voices.keep(name, samples, state.tts.sample_rate_hz, transcript)


def _voice(voice: KeptVoice) -> dict[str, object]:
    return {
        "id": voice.id,
        "name": voice.name,
        "object": "audio.voice",
        "created_at": voice.created_s,
        "seconds": voice.seconds,
        "ref_text": voice.transcript,
    }
