"""A WebSocket and a session, in both directions at once: messages in, sound out, errors told, an end in any case.

`converse` owns the two tasks of one connection from its acceptance to its close. A dialect gives the messages their
meaning. A message that is wrong is answered with an error and changes nothing; a client that is silent for too long, or
takes nothing for too long, or leaves, ends the session, and with it every stream of it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from legato.engine.resolve import SpeechRequest
from legato.errors import InputError, LegatoError, StateError
from legato.server.errors import ApiError, api_error
from legato.server.fields import Fields, read_message
from legato.server.gate import answered_subprotocol
from legato.server.session_settings import limits_of
from legato.server.spoken import Spoken
from legato.server.state import ServerState, state_of
from legato.session.events import Outgoing

log = logging.getLogger("legato.server")

GOING_AWAY, POLICY, TRY_LATER = 1001, 1008, 1013
MAX_FAULTS = 100
"""Wrong messages in a row after which a client is not listened to any more."""


class Wire:
    """The sending half of a socket: one message at a time, none waits for its client longer than `stall_s`."""

    def __init__(self, socket: WebSocket, stall_s: float) -> None:
        self._socket = socket
        self._stall_s = stall_s
        self._turn = asyncio.Lock()

    async def text(self, message: str) -> None:
        """A text frame."""
        async with self._turn:
            await asyncio.wait_for(self._socket.send_text(message), self._stall_s)

    async def data(self, message: bytes) -> None:
        """A binary frame."""
        async with self._turn:
            await asyncio.wait_for(self._socket.send_bytes(message), self._stall_s)

    async def close(self, code: int, reason: str = "") -> None:
        """Close, if nobody has."""
        if self._socket.application_state is not WebSocketState.DISCONNECTED:
            async with self._turn:
                await asyncio.wait_for(self._socket.close(code, reason[:120]), self._stall_s)


class Dialect(Protocol):
    """What the messages of one route mean."""

    message_bytes: int

    async def begin(self) -> None:
        """The connection is there."""

    async def take(self, fields: Fields) -> None:
        """A message came. `LegatoError` and `ApiError` are told to the client."""

    async def tell(self, item: Outgoing) -> None:
        """Send one item of the session."""

    async def refuse(self, error: ApiError) -> None:
        """Tell the client of an error."""


async def serve_socket(
    socket: WebSocket, route: str, *, buffer_ms: int, dialect: Callable[[ServerState, Wire, Spoken], Dialect]
) -> None:
    """One connection of `route`, whatever it speaks: accepted, refused while the server is not ready, then served."""
    state = state_of(socket)
    await socket.accept(subprotocol=answered_subprotocol(socket.scope))
    wire = Wire(socket, state.config.stall_s)
    if not state.readiness.ready:
        await wire.close(TRY_LATER, "the server is starting or stopping")
        return
    request = SpeechRequest()
    async with Spoken(state, route, request, limits_of(state, request, buffer_ms=buffer_ms)) as spoken:
        await converse(socket, state, wire, spoken, dialect(state, wire, spoken))


async def converse(socket: WebSocket, state: ServerState, wire: Wire, spoken: Spoken, dialect: Dialect) -> None:
    """Serve an accepted socket until either side ends it."""
    await dialect.begin()
    listening = asyncio.ensure_future(_listen(socket, state, spoken, dialect))
    talking = asyncio.ensure_future(_talk(spoken, dialect))
    code, reason = 1000, ""
    try:
        await asyncio.wait({listening, talking}, return_when=asyncio.FIRST_COMPLETED)
        if listening.done():
            code, reason = listening.result()
        if talking.done():
            talking.result()
    except (WebSocketDisconnect, asyncio.TimeoutError, ConnectionError):
        code, reason = GOING_AWAY, "the client takes nothing"
    finally:
        for task in (listening, talking):
            task.cancel()
        await asyncio.gather(listening, talking, return_exceptions=True)
    try:
        await wire.close(code, reason)
    except (RuntimeError, asyncio.TimeoutError, ConnectionError, WebSocketDisconnect):
        log.debug("the socket was closed by its client")


async def _talk(spoken: Spoken, dialect: Dialect) -> None:
    async for item in spoken.outgoing():
        await dialect.tell(item)


async def _listen(socket: WebSocket, state: ServerState, spoken: Spoken, dialect: Dialect) -> tuple[int, str]:
    """Take messages until the client leaves; returns how to close."""
    faults = 0
    while faults < MAX_FAULTS:
        try:
            message = await asyncio.wait_for(socket.receive(), state.config.idle_s)
        except asyncio.TimeoutError:
            if not spoken.silent:
                continue
            await dialect.refuse(ApiError(408, "idle_timeout", f"nothing came for {state.config.idle_s:g} s"))
            return GOING_AWAY, "idle"
        if message["type"] == "websocket.disconnect":
            return 1000, ""
        try:
            await _take(message.get("text"), dialect)
            faults = 0
        except (LegatoError, ApiError) as error:
            faults += 1
            await dialect.refuse(_told(error))
    return POLICY, "too many wrong messages"


async def _take(text: str | None, dialect: Dialect) -> None:
    if text is None:
        raise InputError("only text frames with JSON are understood, not binary ones")
    await dialect.take(read_message(text, limit_bytes=dialect.message_bytes))


def _told(error: LegatoError | ApiError) -> ApiError:
    if isinstance(error, ApiError):
        return error
    if isinstance(error, StateError):
        return ApiError(409, "invalid_state", str(error))
    return api_error(error)
