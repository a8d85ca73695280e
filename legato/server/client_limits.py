"""Limits of what one client may have open, so that no client can keep all others out.

A `ClientStreams` belongs to one server and is used on its event loop only. A client is the name of its API key if keys
have names, else its address.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from starlette.requests import HTTPConnection

from legato.errors import QueueFullError
from legato.server.metrics import Metrics

OPEN_STREAMS = 2
"""Streams that one session has in the engine: the one that is generated, and the next one."""


class ClientLimitError(QueueFullError):
    """This client has too many streams or utterances; it can retry when some have ended."""

    code = "client_limit"


class TextTimeoutError(QueueFullError):
    """The client sent no text for too long to an utterance that waits for it."""

    code = "text_timeout"


class ClientStreams:
    """Counts the streams of each client, and refuses those beyond the limit."""

    def __init__(self, limit: int, metrics: Metrics) -> None:
        self._limit = limit
        self._metrics = metrics
        self._streams: Counter[str] = Counter()

    @contextmanager
    def stream(self, client: str) -> Iterator[None]:
        """Count one stream of `client` in this context. `ClientLimitError` if it has too many."""
        if self._streams[client] >= self._limit:
            self._metrics.limit_reached("client_streams")
            raise ClientLimitError(
                f"this client has {self._streams[client]} streams, and the limit is {self._limit}: wait until some end"
            )
        self._streams[client] += 1
        self._metrics.client_streams(max(self._streams.values()))
        try:
            yield
        finally:
            self._streams[client] -= 1
            self._streams += Counter()  # drops clients without streams
            self._metrics.client_streams(max(self._streams.values(), default=0))


def check_utterances(count: int, limit: int, metrics: Metrics) -> None:
    """`ClientLimitError` if a connection has `count` utterances that have not ended, and may not have another."""
    if count >= limit:
        metrics.limit_reached("socket_utterances")
        raise ClientLimitError(f"{limit} utterances of this connection have not ended: wait until some end")


def client_of(connection: HTTPConnection) -> str:
    """The client of a request or WebSocket."""
    key_name = connection.scope.get("state", {}).get("key_name")
    if key_name:
        return f"key {key_name}"
    return client_of_address(connection.client.host if connection.client else "")


def client_of_address(address: str) -> str:
    """The client of a connection without keys."""
    return f"address {address or 'unknown'}"
