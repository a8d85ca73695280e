"""By what a model computes is told for layers and codec, and on CUDA whether steps are recorded."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from shutil import copytree

import pytest
from safetensors.torch import load_file, save_file

from legato.engine import notes
from legato.engine.notes import computed_by, notes_of
from legato.models.load import LoadedModel, load_model
from legato.models.native.library import Missing
from tests.conftest import TinyCheckpoint
from tests.engine.tiny import tiny_config, tiny_decoder, tiny_predictor, tiny_talker
from tests.fake_cuda import fake_cuda, on_device

CODEC = "codec by torch, slower than compiled: a reason"


def model() -> LoadedModel:
    talker, predictor, decoder = deepcopy(tiny_talker()), deepcopy(tiny_predictor()), deepcopy(tiny_decoder())
    return LoadedModel(Path(), tiny_config(), talker, predictor, decoder, None, None, None, codec_note=CODEC)


def test_what_the_loader_says_is_told_and_what_it_leaves_out_too(monkeypatch: pytest.MonkeyPatch) -> None:
    rounded = replace(model(), quant="int8", quant_note="quant int8; layers compiled for this CPU")
    assert notes_of(rounded) == ("quant int8; layers compiled for this CPU", CODEC)
    assert computed_by(rounded) == f"quant int8; layers compiled for this CPU; {CODEC}"
    monkeypatch.setattr(notes, "library", lambda: Missing("no compiler at all"))
    assert notes_of(model()) == ("layers by torch, slower than compiled: no compiler at all", CODEC)


def test_every_loaded_model_has_a_sentence_on_layers_and_one_on_the_codec(tiny_checkpoint: TinyCheckpoint) -> None:
    for quant in ("none", "int8", "int4"):
        layers, codec = notes_of(load_model(tiny_checkpoint("tiny-embedded"), quant=quant))
        assert "layers" in layers or "quant" in layers
        assert codec.startswith("codec ")


def test_weights_that_are_stored_in_float32_are_not_said_to_be_compiled(
    tiny_checkpoint: TinyCheckpoint, tmp_path: Path
) -> None:
    folder = tmp_path / "float32"
    copytree(tiny_checkpoint("tiny-custom-voice"), folder)
    weights = folder / "model.safetensors"
    save_file({name: tensor.float() for name, tensor in load_file(weights).items()}, weights)
    wide, narrow = load_model(folder), load_model(tiny_checkpoint("tiny-custom-voice"))
    assert notes_of(wide)[0].startswith("layers by torch")
    assert not wide.batch_invariant.talker
    assert notes_of(narrow)[0].startswith("layers compiled") == narrow.batch_invariant.talker


def test_graphs_are_told_on_cuda_alone_and_where_there_is_an_engine() -> None:
    on_cpu = model()
    assert computed_by(on_cpu, graphs=True) == computed_by(on_cpu, graphs=False) == computed_by(on_cpu)
    with fake_cuda():
        on_cuda = model()
        for part in (on_cuda.talker, on_cuda.code_predictor, on_cuda.decoder):
            on_device(part)
        on_cuda = replace(on_cuda, codec_note="")
        assert computed_by(on_cuda) == "layers and codec by torch on cuda:0"
        assert computed_by(on_cuda, graphs=True).endswith("; steps recorded as CUDA graphs")
        assert computed_by(on_cuda, graphs=False).endswith("; steps launched call by call (--no-graphs)")
