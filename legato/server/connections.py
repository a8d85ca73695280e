"""HTTP connections with time limits for headers and bodies, and a limit on their number.

uvicorn has a timeout for idle connections only: a client that sends half a request would hold its connection, and a
file descriptor, forever. At the limit of connections, the one that has waited longest for a request is closed in favour
of a new one, so that clients that send nothing cannot keep others out.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import socket
import time
from typing import Any, Protocol

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from legato.config.server import ServerConfig

log = logging.getLogger("legato.server")

_RESERVED_FILES = 48
"""File descriptors that are left for everything but client connections: model, voices, ffmpeg, accept queue."""
_KERNEL_BACKLOG = 1024
_LINGER_S = 0.2
ACCEPT_BATCH = 8
"""Connections that asyncio accepts before the first of them can be refused. Each needs a reserved file."""
_REFUSAL = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: text/plain\r\nContent-Length: 21\r\n"
    b"Retry-After: 2\r\nConnection: close\r\n\r\ntoo many connections\n"
)


class _Listener(Protocol):
    def fileno(self) -> int: ...


class LimitedProtocol(H11Protocol):
    """uvicorn's HTTP/1.1 protocol with the limits of `ServerConfig`."""

    def __init__(self, *arguments: Any, limits: ServerConfig, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._limits = limits
        self._max_connections = max_connections(limits.connections)
        self._timer: asyncio.TimerHandle | None = None
        self._idle_since_s = time.monotonic()
        self._refused = False

    @property
    def idle(self) -> bool:
        """True if no request is being answered and no complete header has arrived."""
        return self.cycle is None or bool(self.cycle.response_complete)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Accept the connection, or refuse it if there are too many and all of them are in use."""
        super().connection_made(transport)
        self._start_timer(self._limits.header_s)
        if len(self.connections) > self._max_connections and not self._close_oldest_idle():
            log.warning("connection refused: all %d connections are in use", self._max_connections)
            self._refused = True
            transport.write(_REFUSAL)
            # Closing at once would reset the connection if the request has arrived, and the client would not see why.
            self._start_timer(_LINGER_S)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timer."""
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Limit the time from the first byte of a header to its last, and likewise of a body."""
        if self._refused:
            return
        waited_for_header = self.idle
        if waited_for_header and self._timer is None:  # the next request of a kept connection begins
            self._start_timer(self._limits.header_s)
        super().data_received(data)
        if self.transport.get_protocol() is not self:
            return  # upgraded to a WebSocket
        if waited_for_header and not self.idle:
            self._stop_timer()
            if self.cycle.more_body:
                self._start_timer(self._limits.body_s)
        elif not self.idle and not self.cycle.more_body:
            self._stop_timer()

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        """Hand the connection over; the WebSocket has its own timeouts."""
        self._stop_timer()
        super().handle_websocket_upgrade(event)

    def on_response_complete(self) -> None:
        """The connection is idle again; uvicorn's keep-alive timeout applies until the next byte."""
        self._stop_timer()
        self._idle_since_s = time.monotonic()
        super().on_response_complete()

    def _close_oldest_idle(self) -> bool:
        # An aborted connection stays in the set until the next iteration of the event loop.
        waiting = [
            connection
            for connection in self.connections
            if isinstance(connection, LimitedProtocol)
            and connection is not self
            and connection.idle
            and not connection.transport.is_closing()
        ]
        if not waiting:
            return False
        min(waiting, key=lambda connection: connection._idle_since_s).transport.abort()
        return True

    def _start_timer(self, seconds: float) -> None:
        self._stop_timer()
        self._timer = self.loop.call_later(seconds, self._on_timeout)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _on_timeout(self) -> None:
        """Close a connection whose header or body is late. The application sees a disconnect."""
        self._timer = None
        if self.idle and not self._refused and not self.transport.is_closing():
            self.transport.write(b"HTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        self.transport.close()


def http_protocol(config: ServerConfig) -> functools.partial[LimitedProtocol]:
    """The protocol factory for uvicorn."""
    return functools.partial(LimitedProtocol, limits=config)


def max_connections(configured: int) -> int:
    """`configured`, or fewer if the process may not open enough files."""
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return configured
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if files == resource.RLIM_INFINITY:
        return configured
    return max(1, min(configured, files - max(_RESERVED_FILES, files // 4)))


def widen_accept_queue(listener: _Listener) -> None:
    """Let the kernel queue more connections than asyncio accepts at once; both are the same argument of asyncio."""
    if os.name == "posix":
        with socket.socket(fileno=os.dup(listener.fileno())) as same:
            same.listen(_KERNEL_BACKLOG)
