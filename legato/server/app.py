"""The ASGI application: one model, its routes, its start and its end.

Owns the bridge and the state of one server from start-up to shut-down; the engine belongs to whoever made it. Nothing
on the event loop computes: the engine has its thread, encoders and recordings have the bridge's.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware

from legato import __version__
from legato.api import Legato
from legato.config.server import ServerConfig
from legato.server import info, pages, playout, realtime, speech, speech_socket, voice_routes
from legato.server.bridge import Bridge
from legato.server.errors import register_error_handlers
from legato.server.gate import Gate
from legato.server.metrics import Metrics
from legato.server.names import Names
from legato.server.records import RequestRecords
from legato.server.schemas import ErrorBody
from legato.server.state import ServerState
from legato.server.voices import VoiceFolder
from legato.server.warmup import warm_up

log = logging.getLogger("legato.server")


def create_app(tts: Legato, config: ServerConfig | None = None) -> FastAPI:
    """The application that speaks with `tts`. Its lifespan has to run (a server does that): it warms the model up."""
    config = config or ServerConfig()
    folder = VoiceFolder(config.voices_folder, limit=config.voices)
    state = ServerState(
        tts=tts,
        config=config,
        bridge=Bridge(tts, ahead_frames=config.ahead_frames),
        voices=folder,
        names=Names(config, tts.model.config, folder),
        metrics=Metrics(tts.stats),
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
    if config.cors_origins:
        app.add_middleware(
            CORSMiddleware, allow_origins=list(config.cors_origins), allow_methods=["*"], allow_headers=["*"]
        )
    app.add_middleware(Gate, config=config)
    _routes(app)
    return app


def _routes(app: FastAPI) -> None:
    """Every route, by the file that owns it."""
    app.include_router(speech.router)
    app.include_router(voice_routes.router)
    app.include_router(info.router)
    app.include_router(playout.router)
    speech_socket.add_routes(app)
    realtime.add_routes(app)
    pages.add_routes(app)


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Warm up beside the loop, so that health is answered meanwhile; at the end stop what still runs."""
    state = app.state.legato
    assert isinstance(state, ServerState)
    warming = asyncio.ensure_future(warm_up(state))
    others = [await _wyoming(state)] if state.config.wyoming_port >= 0 else []
    try:
        yield
    finally:
        state.readiness.draining = True
        for server in others:
            server.close()
        warming.cancel()
        await asyncio.wait({warming})
        state.bridge.close()


async def _wyoming(state: ServerState) -> asyncio.Server:
    """Wyoming beside HTTP, on the same model."""
    from legato.server.wyoming import serve_wyoming  # its package is needed by those who ask for it

    server = await serve_wyoming(state, state.config.host, state.config.wyoming_port)
    state.wyoming_ports.append(int(server.sockets[0].getsockname()[1]))
    log.info("Wyoming listens on %s:%d", state.config.host, state.wyoming_ports[0])
    return server
