"""What every connection passes first: its id, the API key, where it comes from, how large its body may be.

Plain ASGI around the whole application, for HTTP and WebSockets alike. Owns nothing between connections. Health checks
pass without a key, and so do the page's own files, which then ask for it.
"""

from __future__ import annotations

import hmac
import logging
import time
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from legato.config.server import ServerConfig
from legato.server.errors import ApiError, error_response
from legato.server.records import new_request_id

log = logging.getLogger("legato.server")

OPEN_PATHS = ("/health", "/ready", "/", "/favicon.ico")
OPEN_PREFIXES = ("/web/",)
SUBPROTOCOL_KEY = "openai-insecure-api-key."
"""A browser cannot set a WebSocket's headers; OpenAI's own convention puts the key into a subprotocol's name."""


class Gate:
    """The middleware."""

    def __init__(self, app: ASGIApp, config: ServerConfig) -> None:
        self._app = app
        self._config = config

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a connection on, or refuse it."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        request_id = new_request_id()
        scope.setdefault("state", {})["request_id"] = request_id
        visit = _Visit(scope, send, request_id)
        try:
            self._check(scope)
        except ApiError as error:
            scope["state"]["refusal"] = error.code
            await _refuse(error, scope, receive, visit.send)
        else:
            limited = _Limited(receive, self._config.body_bytes).receive if scope["type"] == "http" else receive
            await self._app(scope, limited, visit.send)
        finally:
            visit.log()

    def _check(self, scope: Scope) -> None:
        headers = Headers(scope=scope)
        origin = headers.get("origin", "")
        if origin and not self._same_origin(origin, headers.get("host", "")):
            raise ApiError(403, "foreign_origin", f"pages of {origin[:200]} may not call this server (--cors-origin)")
        length = headers.get("content-length", "")
        if length.isdecimal() and int(length) > self._config.body_bytes:
            raise _too_large(self._config.body_bytes)
        path = scope["path"]
        if self._config.api_key and path not in OPEN_PATHS and not path.startswith(OPEN_PREFIXES):
            self._check_key(headers)

    def _check_key(self, headers: Headers) -> None:
        """In constant time, so that the key cannot be guessed letter by letter."""
        scheme, _, given = headers.get("authorization", "").partition(" ")
        candidates = [given.strip()] if scheme.lower() == "bearer" else []
        for protocol in headers.get("sec-websocket-protocol", "").split(","):
            if protocol.strip().startswith(SUBPROTOCOL_KEY):
                candidates.append(protocol.strip()[len(SUBPROTOCOL_KEY) :])
        key = self._config.api_key.encode()
        if not any(hmac.compare_digest(candidate.encode(), key) for candidate in candidates):
            raise ApiError(
                401,
                "invalid_api_key",
                "this server wants its API key: Authorization: Bearer KEY",
                headers={"WWW-Authenticate": "Bearer"},
            )

    def _same_origin(self, origin: str, host: str) -> bool:
        return (
            urlsplit(origin).netloc == host or origin in self._config.cors_origins or "*" in self._config.cors_origins
        )


def answered_subprotocol(scope: Scope) -> str | None:
    """The first subprotocol that is offered beside the key: a browser takes no answer that names none of its own."""
    return next((name for name in scope["subprotocols"] if not name.startswith(SUBPROTOCOL_KEY)), None)


class _Limited:
    """Counts a body's bytes as they come, whatever its headers claim."""

    def __init__(self, receive: Receive, limit_bytes: int) -> None:
        self._receive = receive
        self._limit_bytes = limit_bytes
        self._seen = 0

    async def receive(self) -> Message:
        message = await self._receive()
        if message["type"] == "http.request":
            self._seen += len(message.get("body", b""))
            if self._seen > self._limit_bytes:
                raise _too_large(self._limit_bytes)
        return message


class _Visit:
    """One connection, for the log: adds the id to the answer's headers and remembers its status."""

    def __init__(self, scope: Scope, send: Send, request_id: str) -> None:
        self._scope = scope
        self._send = send
        self._id = request_id
        self._status = "left"
        self._since_s = time.monotonic()

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._status = str(message["status"])
            MutableHeaders(scope=message)["X-Request-Id"] = self._id
        elif message["type"] == "websocket.accept":
            self._status = "socket"
            MutableHeaders(scope=message)["X-Request-Id"] = self._id
        elif message["type"] == "websocket.close" and self._status == "left":
            self._status = "refused"
        await self._send(message)

    def log(self) -> None:
        spent_ms = 1000 * (time.monotonic() - self._since_s)
        verb = self._scope.get("method", "WEBSOCKET")
        path = ascii(self._scope["path"])[1:-1][:200]
        why = "".join(f" ({code})" for code in [self._scope["state"].get("refusal")] if code)
        log.info("%s %s %s -> %s%s in %.0f ms", self._id, verb, path, self._status, why, spent_ms)


async def _refuse(error: ApiError, scope: Scope, receive: Receive, send: Send) -> None:
    """Over HTTP an error's body; a WebSocket is closed before it is accepted, which a client sees as 403."""
    if scope["type"] == "http":
        await error_response(error)(scope, receive, send)
    else:
        await send({"type": "websocket.close", "code": 1008, "reason": str(error)[:120]})


def _too_large(limit_bytes: int) -> ApiError:
    return ApiError(413, "too_large", f"the body is larger than {limit_bytes / 2**20:.0f} MiB", param="body")
