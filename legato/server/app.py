"""The ASGI application: routes, middleware, error handlers and lifespan for one model.

The application owns the bridge and the server state from start-up to shut-down; the caller owns the engine. The event
loop does no heavy computation: the engine runs on its own thread, audio encoding and decoding in the bridge's threads.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI

from legato import __version__
from legato.api import Legato
from legato.config.server import ServerConfig
from legato.server.auth import AuthMiddleware
from legato.server.bridge import Bridge
from legato.server.dashscope import socket as realtime
from legato.server.errors import register_error_handlers
from legato.server.metrics import Metrics
from legato.server.model_names import ModelNames
from legato.server.openai import info, request_routes, speech, voice_routes
from legato.server.openai.schemas import ErrorBody
from legato.server.request_records import RequestRecords
from legato.server.speech_ws import socket as speech_socket
from legato.server.state import Readiness, ServerState
from legato.server.voices import VoiceFolder
from legato.server.warmup import warm_up
from legato.server.web import pages

log = logging.getLogger("legato.server")


def create_app(tts: Legato, config: ServerConfig | None = None) -> FastAPI:
    """Create the application that serves `tts`. Run its lifespan (as ASGI servers do): it warms the model up."""
    config = config or ServerConfig()
    voices = VoiceFolder(config.voices_folder, limit=config.voices)
    bridge = Bridge(tts, ahead_frames=config.ahead_frames)
    state = ServerState(
        tts=tts,
        config=config,
        bridge=bridge,
        voices=voices,
        names=ModelNames(config, tts.model.config, voices),
        metrics=Metrics(tts.stats, tts.health, bridge.jobs),
        readiness=Readiness(tts.health, config.step_s),
        records=RequestRecords(config.records),
    )
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
    app.add_middleware(AuthMiddleware, config=config)
    _add_routes(app)
    return app


def _add_routes(app: FastAPI) -> None:
    """Register the routes of every protocol."""
    app.include_router(speech.router)
    app.include_router(voice_routes.router)
    app.include_router(info.router)
    app.include_router(request_routes.router)
    speech_socket.add_routes(app)
    realtime.add_routes(app)
    pages.add_routes(app)


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Warm up in the background, so that `/health` responds meanwhile; on exit, cancel what is still running."""
    state = app.state.legato
    assert isinstance(state, ServerState)
    warmup = asyncio.ensure_future(warm_up(state))
    wyoming = None
    if state.config.wyoming_port is not None:
        wyoming = await _start_wyoming(state, state.config.wyoming_port)
    draining = asyncio.create_task(_close_on_drain(state, wyoming))
    try:
        yield
    finally:
        state.readiness.draining = True
        state.drain.started.set()  # not set yet if the application runs in another ASGI server
        state.drain.expired.set()
        warmup.cancel()
        await asyncio.wait({warmup, draining})
        state.bridge.close()


async def _close_on_drain(state: ServerState, wyoming: asyncio.Server | None) -> None:
    """Stop accepting Wyoming connections when the shutdown begins; uvicorn does the same with its own listeners."""
    await state.drain.started.wait()
    if wyoming is not None:
        wyoming.close()


async def _start_wyoming(state: ServerState, port: int) -> asyncio.Server:
    """Serve the Wyoming protocol on its own TCP port, with the same model."""
    from legato.server.wyoming.server import serve_wyoming  # optional: needs the package `wyoming`

    server = await serve_wyoming(state, state.config.host, port)
    state.wyoming_port = int(server.sockets[0].getsockname()[1])
    log.info("Wyoming listens on %s:%d", state.config.host, state.wyoming_port)
    return server
