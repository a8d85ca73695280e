"""One server with built-in voices and one that clones, each shared by the tests of a file."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from legato.api import load
from legato.config.server import ServerConfig
from tests.conftest import TinyCheckpoint
from tests.server.running import Running, cloning, running, wait_for


@pytest.fixture(scope="package")
def speaker(tiny_checkpoint: TinyCheckpoint) -> Iterator[Running]:
    """Two slots, two waiting places."""
    with (
        load(tiny_checkpoint("tiny-custom-voice"), slots=2, queue=2, positions=256) as tts,
        running(tts, ServerConfig(model_id="tiny", text_characters=5000)) as server,
    ):
        yield server


@pytest.fixture(scope="package")
def cloner(tiny_checkpoint: TinyCheckpoint, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """Two slots; keeps voices in a folder of its own."""
    with cloning(tiny_checkpoint("tiny-base"), tmp_path_factory.mktemp("kept") / "voices") as server:
        yield server


@pytest.fixture(scope="package")
def reader(tiny_checkpoint: TinyCheckpoint) -> Iterator[Running]:
    """Its front end knows word times; its sockets may be idle for four seconds."""
    config = ServerConfig(model_id="tiny-embedded", idle_s=4.0, warm_up=False, wyoming_port=0)
    with load(tiny_checkpoint("tiny-embedded"), slots=2, positions=512) as tts, running(tts, config) as server:
        yield server


@pytest.fixture(scope="package")
def wyoming(reader: Running) -> int:
    """The port on which `reader` speaks Wyoming."""
    wait_for(lambda: bool(reader.state.wyoming_ports))
    return reader.state.wyoming_ports[0]
