"""ASGI middleware for every HTTP and WebSocket connection: request id, host and origin checks, CORS, API key, body size
limit, access log.

It wraps the whole application and keeps no state between connections. Health checks, files whose URL is a secret, and
the static files of the web page need no key; the page asks the user for the key and sends it with its API calls. Order,
from the outside: request id and log, origin, CORS (answers preflight requests, which cannot carry a key), host, size,
key.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from legato.config.server import ServerConfig
from legato.server.access_log import AccessLogEntry
from legato.server.errors import ApiError, error_response, internal_error
from legato.server.hosts import (
    Authority,
    is_allowed_host,
    is_own_origin,
    origin_of_fetch,
    own_names,
    parse_authority,
)
from legato.server.keys import ApiKeys
from legato.server.proxies import forwarded, parse_proxies
from legato.server.request_records import new_request_id

log = logging.getLogger("legato.server")

LARGE_BODY_PATHS = (
    "/v1/audio/speech",
    "/v1/audio/speech/batch",
    "/v1/audio/voices",
    "/api/v1/services/aigc/multimodal-generation/generation",
)
"""Routes that take recordings or long texts."""
SMALL_BODY_BYTES = 64 * 1024
"""Body limit of all other routes."""
COSTLY_GET_PATHS = ("/v1/audio/speech",)
"""Routes on which GET computes: pages of other origins could load them without a script, and without `Origin`."""
PUBLIC_PATHS = ("/health", "/ready", "/", "/favicon.ico")
PUBLIC_PREFIXES = ("/web/", "/v1/audio/files/")
SUBPROTOCOL_KEY = "openai-insecure-api-key."
"""Browsers cannot set WebSocket headers. By OpenAI's convention the key is part of a subprotocol name instead."""
EXPOSED_HEADERS = (
    "X-Request-Id",
    "X-Sample-Rate",
    "X-Notes",
    "X-Ignored-Fields",
    "Server-Timing",
    "Retry-After",
    "WWW-Authenticate",
)
"""Response headers that scripts of other origins may read."""


class AuthMiddleware:
    """Assigns a request id, rejects other origins, answers preflight requests, and logs one line per connection."""

    def __init__(self, app: ASGIApp, config: ServerConfig, keys: ApiKeys | None = None) -> None:
        """`keys`: by default those of the settings."""
        self._proxies = parse_proxies(config.trusted_proxies)
        self._root_path = config.root_path
        self._replica = config.replica
        self._own_hosts = frozenset(name.lower() for name in config.allowed_hosts)
        self._cors_origins = config.cors_origins
        checked: ASGIApp = _RequestChecks(app, config, keys if keys is not None else ApiKeys(config))
        if config.cors_origins:
            checked = CORSMiddleware(
                checked,
                allow_origins=list(config.cors_origins),
                allow_methods=["*"],
                allow_headers=["*"],
                expose_headers=EXPOSED_HEADERS,
            )
        self._app = checked

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward the connection to the application, or reject it."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        request_id = self._apply_proxy(scope) or new_request_id(self._replica)
        scope.setdefault("state", {})["request_id"] = request_id
        entry = AccessLogEntry(scope, send, request_id)
        scope["state"]["access_log"] = entry
        try:
            self._check_origin(scope)
        except ApiError as error:
            await _reject(error, scope, receive, entry.send)
        else:
            await self._app(scope, receive, entry.send)
        finally:
            entry.log()

    def _apply_proxy(self, scope: Scope) -> str | None:
        """Apply the path prefix and the headers of trusted proxies to `scope`; returns their request id, if any.

        The prefix may be in the path or not: proxies differ in whether they remove it.
        """
        if self._root_path:
            scope["root_path"] = self._root_path
            if scope["path"] != self._root_path and not scope["path"].startswith(f"{self._root_path}/"):
                scope["path"] = self._root_path + scope["path"]
        client = scope.get("client")
        said = forwarded(Headers(scope=scope), client[0] if client else "", self._proxies)
        if said.client is not None:
            scope["client"] = (said.client, 0)
        if said.scheme is not None:
            scope["scheme"] = said.scheme if scope["type"] == "http" else said.scheme.replace("http", "ws")
        if said.host is not None:
            others = [(name, value) for name, value in scope["headers"] if name != b"host"]
            scope["headers"] = [*others, (b"host", said.host.encode("latin-1"))]
        return said.request_id

    def _check_origin(self, scope: Scope) -> None:
        headers = Headers(scope=scope)
        origin = headers.get("origin", "")
        if not origin and scope["path"].removeprefix(self._root_path) in COSTLY_GET_PATHS:
            origin = origin_of_fetch(referer=headers.get("referer", ""), fetch_site=headers.get("sec-fetch-site", ""))
        if not origin or origin in self._cors_origins or "*" in self._cors_origins:
            return
        if not is_own_origin(origin, parse_authority(headers.get("host", "")), self._own_hosts):
            raise ApiError(
                403,
                "foreign_origin",
                f"origin {origin[:200]!r} may not call this server: start the server with --cors-origin to allow it, "
                "or with --allowed-host if it is the server's own public name",
            )


class _RequestChecks:
    """Host, size and key. Its refusals pass through the CORS middleware, so that scripts can read them."""

    def __init__(self, app: ASGIApp, config: ServerConfig, keys: ApiKeys) -> None:
        self._app = app
        self._config = config
        self._keys = keys
        self._bodies = _BodyBudget(config.bodies_bytes)
        self._allowed_hosts = own_names() | {name.lower() for name in (config.host, *config.allowed_hosts)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward the request to the application, or reject it. An unexpected error becomes a 500 with the id."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        try:
            self._check(scope)
        except ApiError as error:
            await _reject(error, scope, receive, send)
            return
        if scope["type"] == "websocket":
            await self._app(scope, receive, send)
            return
        try:
            await self._serve_http(scope, receive, send)
        except Exception as error:  # boundary: the traceback goes to the log, the client gets the request id
            request_id = scope["state"]["request_id"]
            log.error("%s unexpected %s", request_id, type(error).__name__, exc_info=error)
            if not scope["state"]["access_log"].response_started:
                await _reject(internal_error(request_id), scope, receive, send)

    async def _serve_http(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = _LimitedBody(receive, self._body_limit(scope), self._bodies)

        scope["state"]["release_body"] = body.release

        async def release_and_send(message: Message) -> None:
            body.release()  # the application has parsed it
            await send(message)

        try:
            await self._app(scope, body.receive, release_and_send)
        finally:
            body.release()

    def _body_limit(self, scope: Scope) -> int:
        limit_bytes = self._config.body_bytes
        return limit_bytes if self._route(scope) in LARGE_BODY_PATHS else min(SMALL_BODY_BYTES, limit_bytes)

    def _route(self, scope: Scope) -> str:
        """The path without the prefix."""
        path: str = scope["path"]
        return path.removeprefix(self._config.root_path)

    def _check(self, scope: Scope) -> None:
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        authority = parse_authority(host) if host else None
        if host and authority is None:
            raise ApiError(400, "invalid_host", f"malformed Host header {host[:80]!r}")
        if authority is not None and not self._keys.required:
            self._check_host(authority)
        length = headers.get("content-length", "")
        limit_bytes = self._body_limit(scope)
        if length.isdecimal() and (len(length) > 18 or int(length) > limit_bytes):
            raise _body_too_large(limit_bytes)
        path = self._route(scope)
        if self._keys.required and path not in PUBLIC_PATHS and not path.startswith(PUBLIC_PREFIXES):
            scope["state"]["key_name"] = self._check_key(headers)

    def _check_host(self, authority: Authority) -> None:
        """Without a key, the name in `Host` must not be an attacker's (DNS rebinding). A page cannot guess a key."""
        if not is_allowed_host(authority.name, self._allowed_hosts):
            raise ApiError(
                403,
                "unknown_host",
                f"this server does not answer to the host name {authority.name[:80]!r}: use its IP address, or start "
                "it with --allowed-host NAME or with an API key",
            )

    def _check_key(self, headers: Headers) -> str:
        """The name of the key that was sent. `ApiError` 401 if it is missing or unknown."""
        scheme, _, credentials = headers.get("authorization", "").partition(" ")
        candidates = [credentials.strip()] if scheme.lower() in ("bearer", "api-key") else []  # LiveKit: Api-Key
        for protocol in headers.get("sec-websocket-protocol", "").split(","):
            if protocol.strip().startswith(SUBPROTOCOL_KEY):
                candidates.append(protocol.strip()[len(SUBPROTOCOL_KEY) :])
        for name in map(self._keys.name_of, candidates):
            if name is not None:
                return name
        raise ApiError(
            401,
            "invalid_api_key",
            "missing or invalid API key: send the header Authorization: Bearer KEY",
            headers={"WWW-Authenticate": "Bearer"},
        )


def accepted_subprotocol(scope: Scope) -> str | None:
    """The first offered subprotocol that is not the key: browsers fail the handshake unless the server picks one."""
    return next((name for name in scope["subprotocols"] if not name.startswith(SUBPROTOCOL_KEY)), None)


@dataclass(slots=True)
class _BodyBudget:
    """Bytes of all request bodies that are in memory, and their limit."""

    limit_bytes: int
    used_bytes: int = 0


class _LimitedBody:
    """Counts the bytes of a request body as they arrive: a `Content-Length` may be absent or wrong.

    The bytes count against the common budget until `release`.
    """

    def __init__(self, receive: Receive, limit_bytes: int, budget: _BodyBudget) -> None:
        self._receive = receive
        self._limit_bytes = limit_bytes
        self._budget = budget
        self._received_bytes = 0
        self._reserved_bytes = 0

    async def receive(self) -> Message:
        message = await self._receive()
        if message["type"] == "http.request":
            size = len(message.get("body", b""))
            self._received_bytes += size
            if self._received_bytes > self._limit_bytes:
                raise _body_too_large(self._limit_bytes)
            if self._budget.used_bytes + size > self._budget.limit_bytes:
                raise ApiError(
                    503,
                    "overloaded",
                    "too many large requests at the same time; retry later",
                    headers={"Retry-After": "2"},
                )
            self._reserved_bytes += size
            self._budget.used_bytes += size
        return message

    def release(self) -> None:
        """Give the bytes back. Idempotent."""
        self._budget.used_bytes -= self._reserved_bytes
        self._reserved_bytes = 0


async def _reject(error: ApiError, scope: Scope, receive: Receive, send: Send) -> None:
    """Send an error response. A WebSocket is closed before it is accepted, which its client sees as HTTP 403."""
    scope["state"]["error_code"] = error.code
    if scope["type"] == "http":
        await error_response(error)(scope, receive, send)
    else:
        await send({"type": "websocket.close", "code": 1008, "reason": str(error)[:120]})


def _body_too_large(limit_bytes: int) -> ApiError:
    return ApiError(
        413, "too_large", f"the request body exceeds the limit of {limit_bytes / 2**10:,.0f} KiB", param="body"
    )
