"""Run a coroutine until it finishes, the client disconnects, or the request times out.

ASGI reports a disconnect only as a message of `receive`, so a second task has to wait for it while the work runs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from starlette.types import Receive

from legato.server.drain import CUT
from legato.server.errors import ApiError


class ClientDisconnectedError(Exception):
    """The client closed the connection."""


class RequestTimeoutError(Exception):
    """The request exceeded its time limit, or its client accepted no data for too long."""


async def while_connected(
    receive: Receive, work: Coroutine[Any, Any, None], *, limit_s: float, stop: asyncio.Event | None = None
) -> None:
    """Run `work`; cancel it on disconnect, after `limit_s`, or when `stop` is set at the end of a shutdown.

    It has ended, including its cleanup, when this returns. Raises `ClientDisconnectedError`, `RequestTimeoutError`,
    `ApiError` "server_stopping", or what `work` raises.
    """
    working = asyncio.create_task(work)
    disconnect = asyncio.create_task(_wait_for_disconnect(receive))
    stopping = asyncio.create_task((stop or asyncio.Event()).wait())
    try:
        await asyncio.wait({working, disconnect, stopping}, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            working.result()
            return
        if disconnect.done():
            disconnect.result()
            raise ClientDisconnectedError
        if stopping.done():
            raise ApiError(503, "server_stopping", CUT)
        raise RequestTimeoutError(f"it took longer than {limit_s:g} s")
    finally:
        await _cancel(working)
        await _cancel(disconnect, stopping)


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _cancel(*tasks: asyncio.Task[Any]) -> None:
    """Cancel tasks and wait for their cleanup."""
    for task in tasks:
        task.cancel()
    if not all(task.done() for task in tasks):
        await asyncio.wait(tasks)
    for task in tasks:
        if not task.cancelled():
            task.exception()  # retrieve it: asyncio logs exceptions that are never retrieved
