"""Work for a client, only while the client is there and its time is not over. Owns the two tasks of one race.

ASGI tells that a client left through `receive`, which somebody has to be waiting on while the work goes on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from starlette.types import Receive


class ClientLeftError(Exception):
    """The client closed its connection."""


class RequestTimeoutError(Exception):
    """The request took longer than it may, or its client took nothing for too long."""


async def while_connected(receive: Receive, work: Coroutine[Any, Any, None], *, limit_s: float) -> None:
    """Do `work`. If the client leaves, or `limit_s` passes, the work is cancelled, and has ended when this raises."""
    doing = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(_until_left(receive))
    try:
        await asyncio.wait({doing, leaving}, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
        if doing.done():
            doing.result()
            return
        if leaving.done():
            leaving.result()
            raise ClientLeftError
        raise RequestTimeoutError(f"it took longer than {limit_s:g} s")
    finally:
        await _end(doing)
        await _end(leaving)


async def _until_left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _end(task: asyncio.Future[None]) -> None:
    """Cancel a task and wait until it has cleaned up."""
    if not task.done():
        task.cancel()
        await asyncio.wait({task})
    if not task.cancelled():
        task.exception()  # looked at, so that it is not reported as lost
