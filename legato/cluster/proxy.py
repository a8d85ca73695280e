"""Middleware of Serve's HTTP proxy: one `X-Request-Id` in each response, that of the replica.

The proxy adds an id of its own after the one of the replica. Clients ask for `/v1/requests/{id}` with the latter, which
names the replica. Serve loads `middlewares` by the environment variable `CALLBACK_VARIABLE` of the proxy's process.
"""

from __future__ import annotations

from starlette.middleware import Middleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

CALLBACK_VARIABLE = "RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH"
CALLBACK = "legato.cluster.proxy:middlewares"


class OneRequestId:
    """Drops all `X-Request-Id` headers of a response but the first."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_one_id(message: Message) -> None:
            if message["type"] in ("http.response.start", "websocket.accept"):
                seen, kept = False, []
                for name, value in message.get("headers", ()):
                    is_id = name.lower() == b"x-request-id"
                    if not (is_id and seen):
                        kept.append((name, value))
                    seen = seen or is_id
                message = {**message, "headers": kept}
            await send(message)

        await self._app(scope, receive, send_with_one_id)


def middlewares() -> list[Middleware]:
    """Called by Serve in the process of the proxy."""
    return [Middleware(OneRequestId)]
