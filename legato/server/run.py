"""Listening on a port: uvicorn around the application, with signals that drain instead of cutting off.

Owns the listening socket from start to end. At SIGTERM or SIGINT the server stops being ready and stops listening,
lets the streams under way end for as long as its settings allow, and then cancels them.
"""

from __future__ import annotations

import signal
import socket
from collections.abc import Callable
from types import FrameType

import uvicorn
from fastapi import FastAPI

from legato.config.server import ServerConfig
from legato.server.state import ServerState


class DrainingServer(uvicorn.Server):
    """Uvicorn's server, which tells the application at once that it is to stop, and its owner when it listens."""

    def __init__(self, config: uvicorn.Config, state: ServerState, listening: Callable[[int], None]) -> None:
        super().__init__(config)
        self._state = state
        self._listening = listening

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, then say on which port."""
        await super().startup(sockets)
        for server in self.servers:
            for each in server.sockets:
                self._listening(int(each.getsockname()[1]))
                return

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002  uvicorn's signature
        """Called for SIGINT and SIGTERM: drain. A second Ctrl-C waits no longer. The process then ends as any other."""
        self._state.readiness.draining = True
        self.force_exit = self.should_exit and sig == signal.SIGINT
        self.should_exit = True


def make_server(
    app: FastAPI, config: ServerConfig, *, listening: Callable[[int], None] = lambda _port: None
) -> DrainingServer:
    """A server that is not running yet; `listening` is called with the port once it is."""
    settings = uvicorn.Config(
        app,
        host=config.host,
        port=config.port,
        log_config=None,
        access_log=False,
        timeout_graceful_shutdown=round(config.drain_s) or 1,
        server_header=False,
        ws_max_size=config.body_bytes,
        ws_ping_interval=config.ping_s,
        ws_ping_timeout=config.ping_s,
    )
    state = app.state.legato
    assert isinstance(state, ServerState)
    return DrainingServer(settings, state, listening)


def serve(app: FastAPI, config: ServerConfig, *, listening: Callable[[int], None] = lambda _port: None) -> None:
    """Serve until a signal comes."""
    make_server(app, config, listening=listening).run()
