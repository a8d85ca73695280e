"""What a record says of the model: as many parameters in whatever form it runs, and by what it computed."""

from __future__ import annotations

import pytest
from torch import nn

from legato.bench.facts import ModelFacts, model_facts
from legato.engine.notes import computed_by
from legato.models.load import LoadedModel, load_model
from legato.models.native.panels import Packed
from tests.conftest import TinyCheckpoint

KINDS = ("tiny-custom-voice", "tiny-embedded")


def held(model: LoadedModel) -> int:
    """Numbers that the loaded modules keep as parameters."""
    return sum(each.numel() for part in parts(model) for each in part.parameters())


def parts(model: LoadedModel) -> tuple[nn.Module, ...]:
    return model.talker, model.code_predictor, model.decoder


@pytest.mark.parametrize("kind", KINDS)
def test_parameters_are_those_of_the_ordinary_modules_in_whatever_form_they_run(
    kind: str, tiny_checkpoint: TinyCheckpoint
) -> None:
    folder = tiny_checkpoint(kind)
    ordinary = load_model(folder, compiled=False)
    assert held(ordinary) > 0
    for quant in ("none", "int8", "int4"):
        for compiled in (True, False):
            model = load_model(folder, quant=quant, compiled=compiled)
            assert model_facts(kind, model).parameters == held(ordinary)
            other_form = quant != "none" or any(isinstance(each, Packed) for each in model.decoder.modules())
            assert (held(model) != held(ordinary)) == other_form, "counting what is held would do as well"


def test_by_what_it_computed_is_the_loaders_own_word(tiny_checkpoint: TinyCheckpoint) -> None:
    model = load_model(tiny_checkpoint("tiny-custom-voice"))
    facts: ModelFacts = model_facts("tiny", model, graphs=False)
    assert facts.computed_by == computed_by(model)
    assert model.codec_note in facts.computed_by
    assert "graphs" not in facts.computed_by
