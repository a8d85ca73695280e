"""A tiny model with an engine as benchmark target."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from legato.api import Legato
from legato.backends.select import load_backend
from legato.bench.environment import model_info, this_machine
from legato.bench.measure import Target
from legato.config.engine import EngineConfig
from tests.conftest import TinyCheckpoint


@pytest.fixture(scope="package")
def tiny_target(tiny_checkpoint: TinyCheckpoint) -> Iterator[Target]:
    """Two concurrent streams and one queued."""
    backend = load_backend(tiny_checkpoint("tiny-custom-voice"))
    with Legato(backend, EngineConfig(max_num_seqs=2, kv_slots=3, max_seq_len=256, max_queue=1)) as tts:
        yield Target(tts, this_machine("cpu"), model_info("tiny", backend), synchronized=True)
