"""The tasks of one connection with a session: receive, send, and two timers that may close it.

WebSockets and Wyoming connections use it. It is independent of transport and wire protocol.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass
from typing import Generic, TypeVar

from legato.server.errors import ApiError
from legato.server.state import ServerState

IDLE_POLL_S = 0.1

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ConnectionTasks(Generic[T]):
    """`drained`: whether the session became idle after a shutdown began. `aged`: the connection is too old."""

    receiving: asyncio.Task[T]
    sending: asyncio.Task[None]
    drained: asyncio.Task[bool]
    aged: asyncio.Task[None]


@contextlib.asynccontextmanager
async def connection_tasks(
    state: ServerState,
    receive: Coroutine[None, None, T],
    send: Coroutine[None, None, None],
    *,
    idle: Callable[[], bool],
) -> AsyncIterator[ConnectionTasks[T]]:
    """Run all tasks until the first one ends, then enter the context; on leaving it, cancel the others.

    `idle`: whether the session has nothing to generate or to play.
    """
    tasks = ConnectionTasks(
        receiving=asyncio.create_task(receive),
        sending=asyncio.create_task(send),
        drained=asyncio.create_task(state.drain.wait_until_idle(idle)),
        aged=asyncio.create_task(_wait_for_age(state, idle)),
    )
    everything = (tasks.receiving, tasks.sending, tasks.drained, tasks.aged)
    try:
        await asyncio.wait(everything, return_when=asyncio.FIRST_COMPLETED)
        yield tasks
    finally:
        for task in everything:
            task.cancel()
        await asyncio.gather(*everything, return_exceptions=True)


def too_old(state: ServerState) -> ApiError:
    """The error with which a connection is closed because of its age."""
    return ApiError(408, "socket_timeout", f"the connection is older than {state.config.socket_s:g} s: open a new one")


async def _wait_for_age(state: ServerState, idle: Callable[[], bool]) -> None:
    """Wait until a connection that was opened now is to be closed because of its age."""
    await asyncio.sleep(state.config.socket_s)
    state.metrics.limit_reached("socket_s")
    with contextlib.suppress(asyncio.TimeoutError):
        await asyncio.wait_for(_until(idle), state.config.drain_s)


async def _until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(IDLE_POLL_S)
