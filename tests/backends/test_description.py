"""Descriptions of backends in logs and records."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from shutil import copytree

import pytest
from safetensors.torch import load_file, save_file

from legato.backends.base import description_of
from legato.backends.cpu.backend import CpuBackend
from legato.backends.select import build_backend, load_backend
from legato.backends.torch import TorchBackend
from legato.errors import InputError
from legato.kernels.build import Unavailable
from legato.weights.loading import LoadedModel
from tests.conftest import TinyCheckpoint
from tests.engine.tiny import tiny_config, tiny_decoder, tiny_model, tiny_predictor, tiny_talker
from tests.fake_cuda import fake_cuda, on_device

NONE_HERE = Unavailable("no compiler at all")


def test_description_has_the_reason_for_pytorch() -> None:
    backend = CpuBackend(tiny_model(), NONE_HERE, NONE_HERE)
    assert backend.description == (
        "layers by PyTorch (no compiler at all)",
        "codec by PyTorch (no compiler at all)",
    )
    quantized = replace(tiny_model(), quant="int8", quant_note="quant int8 (auto): a reason")
    described = description_of(CpuBackend(quantized, NONE_HERE, NONE_HERE))
    assert described.startswith("quant int8 (auto): a reason; layers by PyTorch")


def test_every_loaded_model_describes_layers_and_codec(tiny_checkpoint: TinyCheckpoint) -> None:
    for quant in ("none", "int8", "int4"):
        layers, codec = load_backend(tiny_checkpoint("tiny-embedded"), quant=quant).description
        assert layers.startswith("layers by ")
        assert codec.startswith("codec by ")


def test_unquantized_float32_checkpoints_run_in_pytorch(tiny_checkpoint: TinyCheckpoint, tmp_path: Path) -> None:
    folder = tmp_path / "float32"
    copytree(tiny_checkpoint("tiny-custom-voice"), folder)
    weights = folder / "model.safetensors"
    save_file({name: tensor.float() for name, tensor in load_file(weights).items()}, weights)
    wide, narrow = load_backend(folder), load_backend(tiny_checkpoint("tiny-custom-voice"))
    assert wide.description[0].startswith("layers by PyTorch")
    assert not wide.batch_invariance.talker
    assert narrow.description[0].startswith("layers by native") == narrow.batch_invariance.talker


def test_description_mentions_cuda_graphs_on_cuda_with_an_engine_only() -> None:
    on_cpu = build_backend(tiny_model())
    described = {description_of(on_cpu, cuda_graphs=graphs) for graphs in (True, False, None)}
    assert described == {"; ".join(on_cpu.description)}
    with fake_cuda():
        talker, predictor, decoder = deepcopy(tiny_talker()), deepcopy(tiny_predictor()), deepcopy(tiny_decoder())
        for part in (talker, predictor, decoder):
            on_device(part)
        on_cuda = build_backend(
            LoadedModel(
                folder=Path(),
                config=tiny_config(),
                talker=talker,
                code_predictor=predictor,
                decoder=decoder,
            )
        )
        assert isinstance(on_cuda, TorchBackend)
        assert description_of(on_cuda) == "PyTorch on cuda:0"
        assert description_of(on_cuda, cuda_graphs=True) == "PyTorch on cuda:0; CUDA graphs"
        assert description_of(on_cuda, cuda_graphs=False) == "PyTorch on cuda:0; no CUDA graphs"


@pytest.mark.parametrize("device", ["gpu", "CPU", "cuda:", "cuda:x", "", "cpu:0", "mps"])
def test_error_for_unknown_device_lists_the_choices(device: str, tiny_checkpoint: TinyCheckpoint) -> None:
    with pytest.raises(InputError, match="use cpu, cuda or cuda:N") as refused:
        load_backend(tiny_checkpoint("tiny-base"), device=device)
    assert refused.value.field == "device"
