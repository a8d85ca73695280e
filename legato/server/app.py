"""The ASGI application: routes, middleware, error handlers and lifespan for one or several models.

The application owns bridges and server states from start-up to shut-down; the caller owns the engines. The event loop
does no heavy computation: each engine runs on its own thread, audio encoding and decoding in the threads of the bridge.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import fields, replace

from fastapi import FastAPI

from legato import __version__
from legato.api import Legato
from legato.config.engine import EngineConfig
from legato.config.server import ServerConfig
from legato.errors import InputError
from legato.server.auth import AuthMiddleware
from legato.server.bridge import Bridge
from legato.server.client_limits import ClientStreams
from legato.server.dashscope import generation
from legato.server.dashscope import socket as realtime
from legato.server.drain import Drain
from legato.server.errors import register_error_handlers
from legato.server.finished_files import FinishedFiles
from legato.server.keys import ApiKeys
from legato.server.metrics import EngineSources, Metrics
from legato.server.model_names import ModelNames
from legato.server.openai import batch, info, request_routes, speech, voice_routes
from legato.server.openai.schemas import ErrorBody
from legato.server.request_records import RequestRecords
from legato.server.speech_ws import socket as speech_socket
from legato.server.state import Readiness, ServerState
from legato.server.voice_watcher import VoiceWatcher
from legato.server.voices import VoiceFolder
from legato.server.warmup import warm_up
from legato.server.web import pages

log = logging.getLogger("legato.server")

_NO_LIMITS = ("port", "wyoming_port")


def create_app(tts: Legato | Mapping[str, Legato], config: ServerConfig | None = None) -> FastAPI:
    """Create the application that serves `tts`. Run its lifespan (as ASGI servers do): it warms the models up.

    `tts`: one model, with the id `config.model_id`; or several by id. The first one of several is the default: requests
    without a model name refer to it.
    """
    config = config or ServerConfig()
    engines = tts if isinstance(tts, Mapping) else {config.model_id: tts}
    if not engines:
        raise InputError("a server needs at least one model", field="tts")
    state = _create_states(engines, config)[0]
    app = FastAPI(
        title="Legato",
        version=__version__,
        summary="Streaming speech with Qwen3-TTS-class models",
        lifespan=_lifespan,
        responses={status: {"model": ErrorBody} for status in ("4XX", "5XX")},
        docs_url="/docs",
        redoc_url=None,
    )
    app.state.legato = state
    register_error_handlers(app)
    app.state.api_keys = ApiKeys(config)
    app.add_middleware(AuthMiddleware, config=config, keys=app.state.api_keys)
    _add_routes(app)
    return app


def _create_states(engines: Mapping[str, Legato], config: ServerConfig) -> list[ServerState]:
    """The states of all models, which share everything that does not depend on the model."""
    _check_same_audio(engines)
    voices = VoiceFolder(config.voices_folder, limit=config.voices)
    bridges = {name: Bridge(tts, ahead_frames=config.ahead_frames) for name, tts in engines.items()}
    sources = {name: EngineSources(tts.stats, tts.health, bridges[name].jobs) for name, tts in engines.items()}
    metrics = Metrics(sources, limits_of_server(config, next(iter(engines.values())).config))
    clients = ClientStreams(config.client_streams, metrics)
    records, drain = RequestRecords(config.records), Drain()
    aliases = _model_aliases(engines, config)
    states: list[ServerState] = []
    for name, tts in engines.items():
        named = replace(config, model_id=name, model_aliases=aliases)
        states.append(
            ServerState(
                tts=tts,
                config=named,
                bridge=bridges[name],
                voices=voices,
                names=ModelNames(named, tts.model.config, voices),
                metrics=metrics,
                clients=clients,
                records=records,
                readiness=Readiness(tts.health, config.step_s, drain),
                drain=drain,
                models=states,
            )
        )
    return states


def _model_aliases(engines: Mapping[str, Legato], config: ServerConfig) -> dict[str, str]:
    """Alias -> model id. An id wins over an alias of the same name. `InputError` for an alias of an unknown model."""
    aliases: dict[str, str] = {}
    for alias, target in config.model_aliases.items():
        if target and target not in engines:
            ids = ", ".join(map(repr, engines))
            raise InputError(
                f"the alias {alias!r} names the model {target!r}, which is not loaded: use one of {ids}",
                field="model_alias",
            )
        if alias not in engines:
            aliases[alias] = target or next(iter(engines))
    return aliases


def limits_of_server(config: ServerConfig, engine: EngineConfig) -> dict[str, float]:
    """The limits that `/metrics` shows: all numbers of both configurations, by the name of their setting."""
    values = {each.name: getattr(part, each.name) for part in (config, engine) for each in fields(part)}
    return {
        name: value
        for name, value in values.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and name not in _NO_LIMITS
    }


def _add_routes(app: FastAPI) -> None:
    """Register the routes of every protocol."""
    app.include_router(speech.router)
    app.include_router(batch.router)
    app.include_router(voice_routes.router)
    app.include_router(info.router)
    app.include_router(request_routes.router)
    speech_socket.add_routes(app)
    realtime.add_routes(app)
    app.state.finished_files = FinishedFiles()
    app.include_router(generation.router)
    pages.add_routes(app)


def _check_same_audio(engines: Mapping[str, Legato]) -> None:
    """Raise `InputError` unless all models have the same sample rate and frame length, as all 12 Hz checkpoints do.

    A socket session measures playback in samples of the model, and may change the model between utterances.
    """
    codecs = {name: tts.model.config.codec for name, tts in engines.items()}
    formats = {name: (codec.sample_rate_hz, codec.frame_samples) for name, codec in codecs.items()}
    if len(set(formats.values())) > 1:
        listed = ", ".join(f"{name}: {rate_hz} Hz, {samples} samples" for name, (rate_hz, samples) in formats.items())
        raise InputError(f"models of one server must have the same sample rate and frame length ({listed})")


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Warm up in the background, so that `/health` responds meanwhile; on exit, cancel what is still running."""
    state = app.state.legato
    assert isinstance(state, ServerState)
    warmup = asyncio.ensure_future(_warm_up(state.models))
    wyoming = None
    if state.config.wyoming_port is not None:
        wyoming = await _start_wyoming(state, state.config.wyoming_port)
    draining = asyncio.create_task(_close_on_drain(state, wyoming))
    try:
        with VoiceWatcher(state.voices):
            yield
    finally:
        state.drain.request()
        state.drain.started.set()  # not set yet if the application runs in another ASGI server
        state.drain.expired.set()
        warmup.cancel()
        await asyncio.wait({warmup, draining})
        for served in state.models:
            served.bridge.close()


async def _warm_up(states: list[ServerState]) -> None:
    """Warm up the models one after another: together they would only slow each other down."""
    for state in states:
        await warm_up(state)


async def _close_on_drain(state: ServerState, wyoming: asyncio.Server | None) -> None:
    """Stop accepting Wyoming connections when the shutdown begins; uvicorn does the same with its own listeners."""
    await state.drain.started.wait()
    if wyoming is not None:
        wyoming.close()


async def _start_wyoming(state: ServerState, port: int) -> asyncio.Server:
    """Serve the Wyoming protocol on its own TCP port, with the same model."""
    from legato.server.wyoming.server import serve_wyoming  # optional: needs the package `wyoming`

    server = await serve_wyoming(state, state.config.wyoming_host, port)
    state.wyoming_port = int(server.sockets[0].getsockname()[1])
    log.info("Wyoming listens on %s:%d", state.config.wyoming_host, state.wyoming_port)
    return server
