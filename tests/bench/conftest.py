"""A tiny model behind an engine, as the measurements take it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from legato.api import Legato
from legato.bench.facts import model_facts, this_machine
from legato.bench.observe import Subject
from legato.config.engine import EngineConfig
from legato.models.load import load_model
from tests.conftest import TinyCheckpoint


@pytest.fixture(scope="package")
def tiny_subject(tiny_checkpoint: TinyCheckpoint) -> Iterator[Subject]:
    """Two slots and one waiting place."""
    model = load_model(tiny_checkpoint("tiny-custom-voice"))
    with Legato(model, EngineConfig(streams=2, kv_slots=3, positions=256, queue=1)) as tts:
        yield Subject(tts, this_machine("cpu"), model_facts("tiny", model), settled=True)
