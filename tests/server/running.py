"""Runs a server on a free port, in a thread of the test process, so that tests can inspect its engine.

A `Running` is valid while the context manager that made it is open.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from legato.api import Legato, load
from legato.client.http import Client
from legato.config.server import ServerConfig
from legato.server.app import create_app
from legato.server.state import ServerState
from legato.server.uvicorn_server import make_server


@dataclass(frozen=True, slots=True)
class Running:
    """A server that is ready for requests."""

    url: str
    port: int
    tts: Legato
    """The default model."""
    state: ServerState

    def client(self) -> Client:
        """A new client of this server."""
        return Client(self.url)


@contextmanager
def running(
    tts: Legato | Mapping[str, Legato], config: ServerConfig | None = None, *, until_ready: bool = True
) -> Iterator[Running]:
    """Serve one model, or several by id, until the context exits. The caller closes the engines."""
    config = replace(config or ServerConfig(), port=0)
    app = create_app(tts, config)
    ports: list[int] = []
    server = make_server(app, config, on_listening=ports.append)
    thread = threading.Thread(target=server.run, name="test-server")
    thread.start()
    try:
        state = app.state.legato
        wait_for(lambda: bool(ports) and (state.status == "ready" or not until_ready))
        yield Running(f"http://127.0.0.1:{ports[0]}", ports[0], state.tts, state)
    finally:
        server.should_exit = True
        thread.join(60)
        assert not thread.is_alive(), "the server did not stop"


@contextmanager
def cloning(checkpoint: Path, folder: Path) -> Iterator[Running]:
    """A server with two slots and a checkpoint that can clone voices. Voices are stored in `folder`."""
    config = ServerConfig(model_id="tiny-base", voices_folder=folder, warm_up=False)
    with load(checkpoint, max_num_seqs=2) as tts, running(tts, config) as server:
        yield server


def wait_for(condition: Callable[[], bool], *, seconds: float = 60.0) -> None:
    """Poll until `condition` is true. The timeout is generous because the machine may be busy."""
    until_s = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until_s, f"condition not met within {seconds:g} s"
        time.sleep(0.01)


def slots_free(tts: Legato) -> bool:
    """True if no stream is open and all slots are free."""
    stats = tts.stats()
    pools = (stats.talker_slots, stats.codec_slots)
    return stats.streams_open == 0 and all(pool.free == pool.slots for pool in pools)


def metric(text: str, sample: str) -> float:
    """The value of one sample in Prometheus' text format, 0 if it is absent. The label `model` may be left out."""
    wanted = _series(sample)
    for line in text.splitlines():
        series, _, number = line.rpartition(" ")
        if not line.startswith("#") and wanted in (_series(series), _series(series, without="model")):
            return float(number)
    return 0.0


def _series(sample: str, *, without: str = "") -> tuple[str, frozenset[str]]:
    """Name and labels of a sample. Label values of the tests contain no commas."""
    name, _, labels = sample.removesuffix("}").partition("{")
    return name, frozenset(label for label in labels.split(",") if label and label.partition("=")[0] != without)
