"""Runs a session over a WebSocket: receives messages and sends session outputs concurrently, until either side ends.

The wire protocol is a parameter (`SocketProtocol`). An invalid message is answered with an error and changes nothing. A
client that is idle for too long, accepts no data for too long or disconnects ends the session, and with it all streams.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from legato.engine.request import SpeechRequest
from legato.errors import InputError, LegatoError, StateError
from legato.server.auth import accepted_subprotocol
from legato.server.client_limits import client_of
from legato.server.connection_tasks import connection_tasks, too_old
from legato.server.drain import CUT, STOPPING
from legato.server.errors import ApiError, api_error
from legato.server.fields import Fields, read_message
from legato.server.session_runner import SessionRunner
from legato.server.session_settings import limits_of
from legato.server.state import ServerState
from legato.session.events import SessionOutput

log = logging.getLogger("legato.server")

NORMAL, GOING_AWAY, POLICY, RESTART, TRY_LATER = 1000, 1001, 1008, 1012, 1013
"""WebSocket close codes (RFC 6455, section 7.4)."""
MAX_CONSECUTIVE_ERRORS = 100
"""Invalid messages in a row after which the connection is closed."""


class SocketSender:
    """Sending half of a WebSocket: one message at a time, each with a timeout of `stall_s`."""

    def __init__(self, socket: WebSocket, stall_s: float) -> None:
        self._socket = socket
        self._stall_s = stall_s
        self._lock = asyncio.Lock()

    async def text(self, message: str) -> None:
        """Send a text frame."""
        async with self._lock:
            await asyncio.wait_for(self._socket.send_text(message), self._stall_s)

    async def data(self, message: bytes) -> None:
        """Send a binary frame."""
        async with self._lock:
            await asyncio.wait_for(self._socket.send_bytes(message), self._stall_s)

    async def close(self, code: int, reason: str = "") -> None:
        """Close the socket unless it is closed."""
        if self._socket.application_state is not WebSocketState.DISCONNECTED:
            async with self._lock:
                await asyncio.wait_for(self._socket.close(code, reason[:120]), self._stall_s)


class SocketProtocol(Protocol):
    """The wire protocol of one connection."""

    max_message_bytes: int

    async def on_connect(self) -> None:
        """The connection is accepted."""

    async def on_message(self, fields: Fields) -> None:
        """Process a message. A raised `LegatoError` or `ApiError` is sent to the client."""

    async def send_output(self, output: SessionOutput) -> None:
        """Send an output of the session."""

    async def send_error(self, error: ApiError) -> None:
        """Send an error that belongs to no utterance."""


ProtocolFactory = Callable[[ServerState, SocketSender, SessionRunner], SocketProtocol]


async def serve_socket(
    socket: WebSocket, state: ServerState, route: str, *, buffer_ms: int, protocol: ProtocolFactory
) -> None:
    """Serve one connection of `route`: accept it, refuse it while the model is not ready, then run its session.

    `state`: of the model of the first utterance.
    """
    await socket.accept(subprotocol=accepted_subprotocol(socket.scope))
    sender = SocketSender(socket, state.config.stall_s)
    if not state.readiness.ready:
        await sender.close(TRY_LATER, f"the server is not ready: {state.readiness.status}")
        return
    request = SpeechRequest()
    limits = limits_of(state, request, buffer_ms=buffer_ms)
    async with SessionRunner(state, route, request, limits, client=client_of(socket)) as session:
        with state.drain.track(lambda: not session.idle), state.metrics.socket_open(route):
            await _run(socket, state, sender, session, protocol(state, sender, session))


async def _run(
    socket: WebSocket, state: ServerState, sender: SocketSender, session: SessionRunner, protocol: SocketProtocol
) -> None:
    """Receive and send until the client or the session ends, then close the socket."""
    await protocol.on_connect()
    code, reason = NORMAL, ""
    receive, send = _receive(socket, state, session, protocol), _send(session, protocol)
    try:
        async with connection_tasks(state, receive, send, idle=lambda: session.idle) as tasks:
            if tasks.drained.done():
                code, reason = RESTART, STOPPING
                if not tasks.drained.result():
                    await protocol.send_error(ApiError(503, "server_stopping", CUT))
            elif tasks.aged.done():
                code, reason = GOING_AWAY, "the connection is too old"
                await protocol.send_error(too_old(state))
            if tasks.receiving.done():
                code, reason = tasks.receiving.result()
            if tasks.sending.done():
                tasks.sending.result()
    except (WebSocketDisconnect, asyncio.TimeoutError, ConnectionError):
        code, reason = GOING_AWAY, "the client accepts no data"
    try:
        await sender.close(code, reason)
    except (RuntimeError, asyncio.TimeoutError, ConnectionError, WebSocketDisconnect):
        log.debug("the client has closed the socket already")


async def _send(session: SessionRunner, protocol: SocketProtocol) -> None:
    async for output in session.outputs():
        await protocol.send_output(output)


async def _receive(
    socket: WebSocket, state: ServerState, session: SessionRunner, protocol: SocketProtocol
) -> tuple[int, str]:
    """Process messages until the client disconnects or has to be closed; returns close code and reason."""
    errors = 0
    while errors < MAX_CONSECUTIVE_ERRORS:
        try:
            message = await asyncio.wait_for(socket.receive(), state.config.idle_s)
        except asyncio.TimeoutError:
            if not session.waiting_for_client:
                continue  # a client that listens has no reason to send
            await protocol.send_error(ApiError(408, "idle_timeout", f"no message for {state.config.idle_s:g} s"))
            return GOING_AWAY, "idle"
        if message["type"] == "websocket.disconnect":
            return NORMAL, ""
        try:
            await _process(message.get("text"), protocol)
            errors = 0
        except (LegatoError, ApiError) as error:
            errors += 1
            await protocol.send_error(_as_api_error(error))
    return POLICY, "too many invalid messages"


async def _process(text: str | None, protocol: SocketProtocol) -> None:
    if text is None:
        raise InputError("only text frames with JSON are supported, not binary frames")
    await protocol.on_message(read_message(text, limit_bytes=protocol.max_message_bytes))


def _as_api_error(error: LegatoError | ApiError) -> ApiError:
    if isinstance(error, ApiError):
        return error
    if isinstance(error, StateError):
        return ApiError(409, "invalid_state", str(error))
    return api_error(error)
