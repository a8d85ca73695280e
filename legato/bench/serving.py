"""A server for a measurement: the real one, on a free port of this machine, in a thread of this process.

Owns the listening server from the block's start to its end; the model stays the caller's. It does not warm up, so that
what the first request costs is seen. Client, server and engine share this process, its interpreter lock included.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from legato.api import Legato
from legato.config.server import ServerConfig
from legato.errors import StateError
from legato.server.app import create_app
from legato.server.records import RequestRecord as Account
from legato.server.run import make_server
from legato.server.state import ServerState

WAIT_S = 60.0


@dataclass(frozen=True, slots=True)
class Served:
    """Where it listens, and its own record of a request by the request's id."""

    url: str
    account: Callable[[str], Account]


@contextmanager
def served(tts: Legato) -> Iterator[Served]:
    """Serve `tts` until the block ends."""
    config = ServerConfig(port=0, warm_up=False)
    app = create_app(tts, config)
    state = app.state.legato
    assert isinstance(state, ServerState)
    ports: list[int] = []
    listens = threading.Event()

    def listening(port: int) -> None:
        ports.append(port)
        listens.set()

    def account(request_id: str) -> Account:
        found = state.records.find(request_id)
        if found is None:
            raise StateError(f"the server has no record of {request_id!r}")
        return found

    server = make_server(app, config, listening=listening)
    thread = threading.Thread(target=server.run, name="legato-bench-server")
    thread.start()
    try:
        if not listens.wait(WAIT_S):
            raise StateError(f"the server did not listen within {WAIT_S:g} s")
        yield Served(f"http://127.0.0.1:{ports[0]}", account)
    finally:
        server.should_exit = True
        thread.join()
