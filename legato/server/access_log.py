"""The access log: one line per HTTP request or WebSocket, written when it ends.

An `AccessLogEntry` belongs to one connection. It wraps `send` to record the status and to add the request id to the
response.
"""

from __future__ import annotations

import logging
import time

from starlette.datastructures import MutableHeaders
from starlette.types import Message, Scope, Send

log = logging.getLogger("legato.server")


class AccessLogEntry:
    """Status and duration of one connection."""

    def __init__(self, scope: Scope, send: Send, request_id: str) -> None:
        self._scope = scope
        self._send = send
        self._request_id = request_id
        self._status = "disconnected"
        self._started_s = time.monotonic()

    @property
    def response_started(self) -> bool:
        """True if a status has been sent."""
        return self._status != "disconnected"

    async def send(self, message: Message) -> None:
        """Pass a message on. The start of a response gets the header `X-Request-Id`."""
        if message["type"] == "http.response.start":
            self._status = str(message["status"])
            MutableHeaders(scope=message)["X-Request-Id"] = self._request_id
        elif message["type"] == "websocket.accept":
            self._status = "websocket"
            MutableHeaders(scope=message)["X-Request-Id"] = self._request_id
        elif message["type"] == "websocket.close" and not self.response_started:
            self._status = "rejected"
        await self._send(message)

    def log(self) -> None:
        """Write the line."""
        elapsed_ms = 1000 * (time.monotonic() - self._started_s)
        method = self._scope.get("method", "WEBSOCKET")
        path = ascii(self._scope["path"])[1:-1][:200]  # escaped: a path with a newline must not forge a log line
        error_code = self._scope["state"].get("error_code")
        reason = f" ({error_code})" if error_code else ""
        client = self._scope.get("client")
        fields = {
            "request_id": self._request_id,
            "method": method,
            "route": path,
            "status": self._status,
            "error": error_code,
            "key": self._scope["state"].get("key_name"),
            "client": client[0] if client else None,
            "duration_ms": round(elapsed_ms, 1),
        }
        line = "%s %s %s -> %s%s in %.0f ms"
        log.info(line, self._request_id, method, path, self._status, reason, elapsed_ms, extra={"fields": fields})
