"""ASGI middleware for every HTTP and WebSocket connection: request id, API key, origin check, body size limit, access
log.

It wraps the whole application and keeps no state between connections. Health checks and the static files of the web
page need no key; the page asks the user for the key and sends it with its API calls.
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
from legato.server.request_records import new_request_id

log = logging.getLogger("legato.server")

PUBLIC_PATHS = ("/health", "/ready", "/", "/favicon.ico")
PUBLIC_PREFIXES = ("/web/",)
SUBPROTOCOL_KEY = "openai-insecure-api-key."
"""Browsers cannot set WebSocket headers. By OpenAI's convention the key is part of a subprotocol name instead."""


class AuthMiddleware:
    """Assigns a request id, checks origin, size and API key, and logs one line per connection."""

    def __init__(self, app: ASGIApp, config: ServerConfig) -> None:
        self._app = app
        self._config = config

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward the connection to the application, or reject it."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        request_id = new_request_id()
        scope.setdefault("state", {})["request_id"] = request_id
        entry = _AccessLogEntry(scope, send, request_id)
        try:
            self._check(scope)
        except ApiError as error:
            scope["state"]["error_code"] = error.code
            await _reject(error, scope, receive, entry.send)
        else:
            limited = _LimitedBody(receive, self._config.body_bytes).receive if scope["type"] == "http" else receive
            await self._app(scope, limited, entry.send)
        finally:
            entry.log()

    def _check(self, scope: Scope) -> None:
        headers = Headers(scope=scope)
        origin = headers.get("origin", "")
        if origin and not self._origin_allowed(origin, headers.get("host", "")):
            raise ApiError(
                403,
                "foreign_origin",
                f"origin {origin[:200]!r} may not call this server: start the server with --cors-origin to allow it",
            )
        length = headers.get("content-length", "")
        if length.isdecimal() and int(length) > self._config.body_bytes:
            raise _body_too_large(self._config.body_bytes)
        path = scope["path"]
        if self._config.api_key and path not in PUBLIC_PATHS and not path.startswith(PUBLIC_PREFIXES):
            self._check_key(headers)

    def _check_key(self, headers: Headers) -> None:
        """Compare in constant time, so that response times do not reveal a prefix of the key."""
        scheme, _, credentials = headers.get("authorization", "").partition(" ")
        candidates = [credentials.strip()] if scheme.lower() == "bearer" else []
        for protocol in headers.get("sec-websocket-protocol", "").split(","):
            if protocol.strip().startswith(SUBPROTOCOL_KEY):
                candidates.append(protocol.strip()[len(SUBPROTOCOL_KEY) :])
        key = self._config.api_key.encode()
        if not any(hmac.compare_digest(candidate.encode(), key) for candidate in candidates):
            raise ApiError(
                401,
                "invalid_api_key",
                "missing or invalid API key: send the header Authorization: Bearer KEY",
                headers={"WWW-Authenticate": "Bearer"},
            )

    def _origin_allowed(self, origin: str, host: str) -> bool:
        return (
            urlsplit(origin).netloc == host or origin in self._config.cors_origins or "*" in self._config.cors_origins
        )


def accepted_subprotocol(scope: Scope) -> str | None:
    """The first offered subprotocol that is not the key: browsers fail the handshake unless the server picks one."""
    return next((name for name in scope["subprotocols"] if not name.startswith(SUBPROTOCOL_KEY)), None)


class _LimitedBody:
    """Counts the bytes of a request body as they arrive: a `Content-Length` may be absent or wrong."""

    def __init__(self, receive: Receive, limit_bytes: int) -> None:
        self._receive = receive
        self._limit_bytes = limit_bytes
        self._received_bytes = 0

    async def receive(self) -> Message:
        message = await self._receive()
        if message["type"] == "http.request":
            self._received_bytes += len(message.get("body", b""))
            if self._received_bytes > self._limit_bytes:
                raise _body_too_large(self._limit_bytes)
        return message


class _AccessLogEntry:
    """The log line of one connection. Wraps `send` to record the status and to add the `X-Request-Id` header."""

    def __init__(self, scope: Scope, send: Send, request_id: str) -> None:
        self._scope = scope
        self._send = send
        self._request_id = request_id
        self._status = "disconnected"
        self._started_s = time.monotonic()

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._status = str(message["status"])
            MutableHeaders(scope=message)["X-Request-Id"] = self._request_id
        elif message["type"] == "websocket.accept":
            self._status = "websocket"
            MutableHeaders(scope=message)["X-Request-Id"] = self._request_id
        elif message["type"] == "websocket.close" and self._status == "disconnected":
            self._status = "rejected"
        await self._send(message)

    def log(self) -> None:
        elapsed_ms = 1000 * (time.monotonic() - self._started_s)
        method = self._scope.get("method", "WEBSOCKET")
        path = ascii(self._scope["path"])[1:-1][:200]  # escaped: a path with a newline must not forge a log line
        error_code = self._scope["state"].get("error_code")
        reason = f" ({error_code})" if error_code else ""
        log.info("%s %s %s -> %s%s in %.0f ms", self._request_id, method, path, self._status, reason, elapsed_ms)


async def _reject(error: ApiError, scope: Scope, receive: Receive, send: Send) -> None:
    """Send an error response. A WebSocket is closed before it is accepted, which its client sees as HTTP 403."""
    if scope["type"] == "http":
        await error_response(error)(scope, receive, send)
    else:
        await send({"type": "websocket.close", "code": 1008, "reason": str(error)[:120]})


def _body_too_large(limit_bytes: int) -> ApiError:
    return ApiError(
        413, "too_large", f"the request body exceeds the limit of {limit_bytes / 2**20:.0f} MiB", param="body"
    )
