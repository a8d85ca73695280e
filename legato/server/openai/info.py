"""Routes about the server itself: health, readiness, metrics and models. None of them waits for the engine."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from legato import __version__
from legato.config.aliases import ANY_MODEL
from legato.server.bridge import Pool
from legato.server.metrics import CONTENT_TYPE
from legato.server.openai.speech_request import supports_cloning, supports_word_times
from legato.server.state import ServerState, state_of
from legato.text.prompt import InstructSupport, allowed_languages, instruct_support

router = APIRouter()


@router.head("/health", include_in_schema=False)
@router.get("/health", summary="Liveness", response_model=dict[str, str])
async def health(request: Request) -> Response:
    """200 while the engine works, also during warm-up and shutdown; 503 if it is dead or stuck."""
    fault = state_of(request).engine_fault
    if fault is None:
        return JSONResponse({"status": "ok"})
    return JSONResponse({"status": fault}, status_code=503)


@router.head("/ready", include_in_schema=False)
@router.get("/ready", summary="Readiness")
async def ready(request: Request) -> Response:
    """200 after warm-up, while the engine works, and until shutdown begins; 503 otherwise."""
    status = state_of(request).status
    if status == "ready":
        return JSONResponse({"status": status})
    return JSONResponse({"status": status}, status_code=503, headers={"Retry-After": "2"})


@router.get("/metrics", summary="Prometheus metrics", response_class=Response)
async def metrics(request: Request) -> Response:
    """Engine and request metrics in Prometheus' text format."""
    return Response(state_of(request).metrics.text(), media_type=CONTENT_TYPE)


@router.get("/v1/models", summary="List the models and their aliases")
async def models(request: Request) -> dict[str, object]:
    """OpenAI's model list: the loaded models with their capabilities, the default first, then the aliases."""
    return {"object": "list", "data": await _model_list(state_of(request).models)}


@router.get("/v1/audio/models", summary="List the models as Open WebUI reads them")
async def audio_models(request: Request) -> dict[str, object]:
    """The same list under the names that Open WebUI and similar front ends read: `models`, each with a `name`."""
    entries = await _model_list(state_of(request).models)
    return {"object": "list", "models": [{**entry, "name": entry["id"]} for entry in entries]}


async def _model_list(states: list[ServerState]) -> list[dict[str, object]]:
    loaded = [await _model_json(state, state.config.model_id) for state in states]
    aliases = [name for state in states for name in state.names.models()[1:] if name != ANY_MODEL]
    return [*loaded, *(_model_entry(name, is_alias=True) for name in aliases)]


@router.get("/v1/models/{model:path}", summary="Get a model")
async def model(request: Request, model: str) -> dict[str, object]:
    """A loaded model, under its id or an alias."""
    return await _model_json(state_of(request).for_model(model), model)


async def _model_json(state: ServerState, name: str) -> dict[str, object]:
    """A model with its capabilities and numerics fingerprint. `name`: its id or an alias."""
    fingerprint = await state.bridge.in_thread(Pool.DISK, state.tts.fingerprint)
    details = {**capabilities(state), "fingerprint": fingerprint.to_json()}
    return {**_model_entry(name, is_alias=name != state.config.model_id), "legato": details}


def _model_entry(name: str, *, is_alias: bool) -> dict[str, object]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "alias" if is_alias else "legato"}


def capabilities(state: ServerState) -> dict[str, object]:
    """The features of a model."""
    config = state.tts.model.config
    return {
        "version": __version__,
        "ready": state.readiness.ready,
        "kind": config.kind,
        "sample_rate": state.tts.sample_rate_hz,
        "frame_ms": 1000 * config.codec.frame_samples / config.codec.sample_rate_hz,
        "voices": list(state.names.speakers),
        "languages": list(allowed_languages(config.talker)),
        "clones": supports_cloning(state.tts),
        "keeps_voices": supports_cloning(state.tts) and state.config.voices_folder is not None,
        "word_times": supports_word_times(state.tts),
        "instructions": instruct_support(config) is InstructSupport.USED,
        "speed": state.tts.supports_speed,
    }
