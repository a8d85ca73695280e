"""Servers shared by all tests of the package: built-in voices, cloning, word timestamps with Wyoming."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from legato.api import load
from legato.config.server import ServerConfig
from tests.conftest import TinyCheckpoint
from tests.server.running import Running, cloning, running, wait_for


@pytest.fixture(scope="package")
def speaker(tiny_checkpoint: TinyCheckpoint) -> Iterator[Running]:
    """A server with built-in voices, two KV slots and a queue of two."""
    with (
        load(tiny_checkpoint("tiny-custom-voice"), max_num_seqs=2, max_queue=2, max_seq_len=256) as tts,
        running(tts, ServerConfig(model_id="tiny", text_characters=5000)) as server,
    ):
        yield server


@pytest.fixture(scope="package")
def cloner(tiny_checkpoint: TinyCheckpoint, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A server that clones, with two KV slots and a temporary folder for uploaded voices."""
    with cloning(tiny_checkpoint("tiny-base"), tmp_path_factory.mktemp("uploaded") / "voices") as server:
        yield server


@pytest.fixture(scope="package")
def reader(tiny_checkpoint: TinyCheckpoint) -> Iterator[Running]:
    """A server with word timestamps, an idle timeout of four seconds, and Wyoming."""
    config = ServerConfig(model_id="tiny-embedded", idle_s=4.0, warm_up=False, wyoming_port=0)
    with load(tiny_checkpoint("tiny-embedded"), max_num_seqs=2, max_seq_len=512) as tts, running(tts, config) as server:
        yield server


@pytest.fixture(scope="package")
def wyoming(reader: Running) -> int:
    """The Wyoming port of `reader`."""
    wait_for(lambda: reader.state.wyoming_port is not None)
    assert reader.state.wyoming_port is not None
    return reader.state.wyoming_port
