"""What a server tells about itself: models, health, readiness, metrics, and what became of a request. Owns nothing.

Nothing here waits for the engine.
"""

from __future__ import annotations

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from legato import __version__
from legato.server.errors import ApiError
from legato.server.metrics import CONTENT_TYPE
from legato.server.records import RequestRecord
from legato.server.speech_request import can_clone, knows_words
from legato.server.state import ServerState, state_of
from legato.text.prompt import Instructions, allowed_languages, instructions

router = APIRouter()


@router.get("/health", summary="The process answers")
async def health() -> dict[str, str]:
    """Always, also while the model warms up."""
    return {"status": "ok"}


@router.get("/ready", summary="New speech is welcome")
async def ready(request: Request) -> Response:
    """200 after warm-up and until the server is told to stop, 503 otherwise."""
    readiness = state_of(request).readiness
    if readiness.ready:
        return JSONResponse({"status": "ready"})
    why = "stopping" if readiness.draining else "warming up"
    return JSONResponse({"status": why}, status_code=503, headers={"Retry-After": "2"})


@router.get("/metrics", summary="Figures for Prometheus", response_class=Response)
async def metrics(request: Request) -> Response:
    """The engine's sums and the server's requests."""
    return Response(state_of(request).metrics.text(), media_type=CONTENT_TYPE)


@router.get("/v1/models", summary="The model and its other names")
async def models(request: Request) -> dict[str, object]:
    """OpenAI's list; the first entry is the model itself and says what it can do."""
    state = state_of(request)
    entries = [_model(name, aliased=index > 0) for index, name in enumerate(state.names.models())]
    entries[0]["legato"] = abilities(state)
    return {"object": "list", "data": entries}


@router.get("/v1/models/{model:path}", summary="One model")
async def model(request: Request, model: str) -> dict[str, object]:
    """The model under any of its names."""
    state = state_of(request)
    state.names.check_model(model)
    return {**_model(model, aliased=model != state.config.model_id), "legato": abilities(state)}


def _model(name: str, *, aliased: bool) -> dict[str, object]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "alias" if aliased else "legato"}


def abilities(state: ServerState) -> dict[str, object]:
    """What the loaded model can be asked for."""
    config = state.tts.model.config
    return {
        "version": __version__,
        "ready": state.readiness.ready,
        "kind": config.kind,
        "sample_rate": state.tts.sample_rate_hz,
        "frame_ms": 1000 * config.codec.frame_samples / config.codec.sample_rate_hz,
        "voices": list(state.names.speakers),
        "languages": list(allowed_languages(config.talker)),
        "clones": can_clone(state.tts),
        "keeps_voices": can_clone(state.tts) and state.config.voices_folder is not None,
        "word_times": knows_words(state.tts),
        "instructions": instructions(config) is Instructions.USED,
        "speed": state.tts.changes_speed,
    }


@router.get("/v1/requests/{request_id}", summary="What became of a request")
async def request_record(request: Request, request_id: str) -> dict[str, object]:
    """Outcome, finish reason and timing of a request by its X-Request-Id, under way or over."""
    return known_record(state_of(request), request_id).as_json()


def known_record(state: ServerState, request_id: str) -> RequestRecord:
    """The record with this id, or 404."""
    record = state.records.find(request_id)
    if record is None:
        raise ApiError(404, "unknown_request", "no such request is known (any more)", param="request_id")
    return record
