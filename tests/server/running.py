"""A server on a free port, in a thread of the test's process, so that a test can also look at its engine."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from legato.api import Legato, load
from legato.client.http import Client
from legato.config.server import ServerConfig
from legato.server.app import create_app
from legato.server.run import make_server
from legato.server.state import ServerState


@dataclass(frozen=True, slots=True)
class Running:
    """A server that is ready."""

    url: str
    port: int
    tts: Legato
    state: ServerState

    def client(self) -> Client:
        """A client of it."""
        return Client(self.url)


@contextmanager
def running(tts: Legato, config: ServerConfig | None = None) -> Iterator[Running]:
    """Serve `tts` until the block ends. The engine stays the caller's."""
    config = replace(config or ServerConfig(), port=0)
    app = create_app(tts, config)
    ports: list[int] = []
    server = make_server(app, config, listening=ports.append)
    thread = threading.Thread(target=server.run, name="test-server")
    thread.start()
    try:
        state = app.state.legato
        wait_for(lambda: bool(ports) and state.readiness.ready)
        yield Running(f"http://127.0.0.1:{ports[0]}", ports[0], tts, state)
    finally:
        server.should_exit = True
        thread.join(60)
        assert not thread.is_alive(), "the server did not stop"


@contextmanager
def cloning(checkpoint: Path, folder: Path) -> Iterator[Running]:
    """A server with two slots on a checkpoint that clones, which keeps voices in `folder`."""
    config = ServerConfig(model_id="tiny-base", voices_folder=folder, warm_up=False)
    with load(checkpoint, slots=2) as tts, running(tts, config) as server:
        yield server


def wait_for(condition: Callable[[], bool], *, seconds: float = 60.0) -> None:
    """Wait until `condition` holds; generous, because the machine may be busy."""
    until_s = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until_s, "it did not come to pass"
        time.sleep(0.01)


def slots_free(tts: Legato) -> bool:
    """True when no stream holds anything and none waits."""
    now = tts.stats()
    pools = (now.talker_slots, now.codec_slots)
    return now.streams_open == 0 and all(pool.free == pool.slots for pool in pools)
