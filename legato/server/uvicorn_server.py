"""Serve the application with uvicorn, with graceful shutdown.

On SIGTERM or SIGINT the server reports not ready, stops listening, lets active streams of every protocol finish for up
to `drain_s` seconds, and then cuts them.
"""

from __future__ import annotations

import asyncio
import signal
import socket
import threading
from collections.abc import Callable
from types import FrameType

import uvicorn
from fastapi import FastAPI

from legato.config.server import ServerConfig
from legato.server.connections import ACCEPT_BATCH, http_protocol, widen_accept_queue
from legato.server.state import ServerState

MAX_SOCKET_MESSAGE_BYTES = 8 * 2**20
"""A larger message closes its WebSocket. Smaller ones over a protocol's own limit get an error message."""


class DrainingServer(uvicorn.Server):
    """Uvicorn server that marks the application as draining on the first signal and reports its port.

    `on_listening` is called with the port once the socket listens, `on_hangup` on SIGHUP.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        state: ServerState,
        on_listening: Callable[[int], None],
        on_hangup: Callable[[], None],
    ) -> None:
        super().__init__(config)
        self._state = state
        self._on_listening = on_listening
        self._on_hangup = on_hangup

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start listening, then report the port of the first socket."""
        await super().startup(sockets)
        if hasattr(signal, "SIGHUP") and threading.current_thread() is threading.main_thread():
            asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self._on_hangup)
        for server in self.servers:
            for listener in server.sockets:
                widen_accept_queue(listener)
        for server in self.servers:
            for listener in server.sockets:
                self._on_listening(int(listener.getsockname()[1]))
                return

    @property
    def cut(self) -> int:
        """Streams and requests that were cut at shutdown."""
        return self._state.drain.cut

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Drain all protocols, then close what is left. uvicorn alone would close WebSockets at once."""
        self._state.drain.request()
        for server in self.servers:
            server.close()
        left_s = await self._state.drain.run(self._state.config.drain_s, abort=lambda: self.force_exit)
        # What is not speech, such as an upload, gets the rest of the time, and cut responses a moment to end.
        self.config.timeout_graceful_shutdown = max(2, round(left_s))
        tasks = set(self.server_state.tasks)
        await super().shutdown(sockets)
        self._state.drain.cut += sum(not task.done() or task.cancelled() for task in tasks)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002  uvicorn's signature
        """Start draining on SIGINT or SIGTERM. A second Ctrl-C exits without waiting."""
        self._state.drain.request()
        self.force_exit = self.should_exit and sig == signal.SIGINT
        self.should_exit = True


def make_server(
    app: FastAPI, config: ServerConfig, *, on_listening: Callable[[int], None] = lambda _port: None
) -> DrainingServer:
    """Create a server without starting it."""
    settings = uvicorn.Config(
        app,
        host=config.host,
        port=config.port,
        log_config=None,
        access_log=False,
        http=http_protocol(config),  # type: ignore[arg-type]  # uvicorn calls it as it calls the class
        timeout_keep_alive=config.keep_alive_s,  # type: ignore[arg-type]  # passed to call_later
        backlog=ACCEPT_BATCH,
        server_header=False,
        proxy_headers=False,  # `AuthMiddleware` applies them; uvicorn would trust every local client
        ssl_certfile=config.ssl_certfile,
        ssl_keyfile=config.ssl_keyfile,
        ws_max_size=MAX_SOCKET_MESSAGE_BYTES,
        # Compression is off: `ws_max_size` is checked only after a message is fully decompressed, so a few kilobytes
        # could expand to gigabytes in memory. Audio hardly compresses, and texts are short.
        ws_per_message_deflate=False,
        ws_ping_interval=config.ping_s,
        ws_ping_timeout=config.ping_s,
    )
    state = app.state.legato
    assert isinstance(state, ServerState)
    return DrainingServer(settings, state, on_listening, app.state.api_keys.reload)


def serve(app: FastAPI, config: ServerConfig, *, on_listening: Callable[[int], None] = lambda _port: None) -> int:
    """Serve until SIGTERM or SIGINT. Returns the number of streams and requests that were cut at shutdown."""
    server = make_server(app, config, on_listening=on_listening)
    server.run()
    return server.cut
