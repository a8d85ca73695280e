"""Watchdog of `legato serve`: ends the process if the engine is stuck or dead, so that a supervisor restarts it.

A hung step may be inside a kernel or a driver, where no exception reaches it; ending the process is the only cure. The
watchdog runs in its own thread, because the event loop may be stuck too. It is started by the command only: a program
that imports legato decides by itself, with `Legato.health`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

_POLL_S = 0.5

log = logging.getLogger("legato.server")


class Watchdog:
    """Use as a context manager around the server."""

    def __init__(self, fault: Callable[[], str | None], limit_s: float, *, end_process: Callable[[], object]) -> None:
        """`fault`: why the engine is unhealthy now. `limit_s`: time after which `end_process` is called; 0: never."""
        self._fault = fault
        self._limit_s = limit_s
        self._end_process = end_process
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="legato-watchdog", daemon=True)

    def __enter__(self) -> Watchdog:
        if self._limit_s:
            self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()

    def _watch(self) -> None:
        unhealthy_since_s: float | None = None
        while not self._stop.wait(min(_POLL_S, self._limit_s / 4)):
            fault = self._fault()
            if fault is None:
                unhealthy_since_s = None
                continue
            now_s = time.monotonic()
            if unhealthy_since_s is None:
                unhealthy_since_s = now_s
                log.error("%s; this process ends in %g s unless it recovers", fault, self._limit_s)
            if now_s - unhealthy_since_s >= self._limit_s:
                log.critical("%s: ending the process", fault)
                self._end_process()
                return
