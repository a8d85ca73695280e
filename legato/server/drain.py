"""Graceful shutdown: refuse new work, let active work finish for a limited time, then cut what is left.

A `Drain` belongs to one server. The signal handler calls `request`; then `run` moves it through its two events, both of
which stay set: `started` (idle connections close) and `expired` (active work ends, and its clients get an error). Every
protocol tracks its work here, so that shutdown knows when it is done and how much was cut.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_POLL_S = 0.05
_FAREWELL_S = 2.0
"""Time for the last messages to clients whose work was cut, and for closing idle connections."""
STOPPING = "the server is stopping"
CUT = "the server stopped before the end of the speech"


class Drain:
    """State of a shutdown. Use on the event loop only."""

    def __init__(self) -> None:
        self.started = asyncio.Event()
        self.expired = asyncio.Event()
        self.requested = False
        """True from the first signal on: new work is refused."""
        self.cut = 0
        """Streams and requests that did not finish."""
        self._work: set[Callable[[], bool]] = set()

    def request(self) -> None:
        """Refuse new work from now on. Safe in a signal handler, unlike setting an event of the loop."""
        self.requested = True

    @contextmanager
    def track(self, active: Callable[[], bool] = lambda: True) -> Iterator[None]:
        """Count this context as work while `active` returns True."""

        def is_active() -> bool:  # a distinct object for each context
            return active()

        self._work.add(is_active)
        try:
            yield
        finally:
            self._work.discard(is_active)

    @property
    def active(self) -> int:
        """Tracked work that is still active."""
        return sum(is_active() for is_active in self._work)

    async def run(self, limit_s: float, *, abort: Callable[[], bool] = lambda: False) -> float:
        """Wait until no work is active, for at most `limit_s` or until `abort`, then cut it. Returns the seconds left.

        When this returns, all connections have closed, or had `_FAREWELL_S` to do so.
        """
        self.requested = True
        self.started.set()
        end_s = time.monotonic() + limit_s
        while self.active and time.monotonic() < end_s and not abort():
            await asyncio.sleep(_POLL_S)
        self.cut += self.active
        self.expired.set()
        left_s = max(0.0, end_s - time.monotonic())
        farewell_end_s = time.monotonic() + _FAREWELL_S
        while self._work and time.monotonic() < farewell_end_s:
            await asyncio.sleep(_POLL_S)
        return left_s

    async def wait_until_idle(self, idle: Callable[[], bool]) -> bool:
        """Wait for a shutdown, then until `idle`. False if the time was over first: what is active was cut."""
        await self.started.wait()
        while not idle():
            if self.expired.is_set():
                return False
            await asyncio.sleep(_POLL_S)
        await asyncio.sleep(_POLL_S)  # the message that reports the end is being sent
        return True
