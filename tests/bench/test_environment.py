"""Model metadata of a record: the parameter count is independent of quantization and packing; backends are recorded."""

from __future__ import annotations

import pytest
from torch import nn

from legato.backends.base import Backend, description_of
from legato.backends.cpu.panels import Packed
from legato.backends.select import build_backend, load_backend
from legato.bench.environment import ModelInfo, model_info
from legato.weights.loading import LoadedModel, load_model
from tests.conftest import TinyCheckpoint

KINDS = ("tiny-custom-voice", "tiny-embedded")


def loaded_parameters(model: Backend | LoadedModel) -> int:
    """Parameters of the loaded modules."""
    return sum(each.numel() for part in parts(model) for each in part.parameters())


def parts(model: Backend | LoadedModel) -> tuple[nn.Module, ...]:
    return model.talker, model.code_predictor, model.decoder


@pytest.mark.parametrize("kind", KINDS)
def test_parameter_count_is_independent_of_quantization_and_packing(kind: str, tiny_checkpoint: TinyCheckpoint) -> None:
    folder = tiny_checkpoint(kind)
    unpacked = load_model(folder)
    assert loaded_parameters(unpacked) > 0
    for quant in ("none", "int8", "int4"):
        for compiled in (True, False):
            backend = build_backend(load_model(folder, quant=quant), native=compiled)
            assert model_info(kind, backend).parameters == loaded_parameters(unpacked)
            packed = quant != "none" or any(isinstance(each, Packed) for each in backend.decoder.modules())
            assert (loaded_parameters(backend) != loaded_parameters(unpacked)) == packed, (
                "the test would also pass if loaded parameters were counted"
            )


def test_backends_are_recorded_from_the_loader(tiny_checkpoint: TinyCheckpoint) -> None:
    backend = load_backend(tiny_checkpoint("tiny-custom-voice"))
    metadata: ModelInfo = model_info("tiny", backend, cuda_graphs=False)
    assert metadata.backend == description_of(backend)
    assert backend.description[-1] in metadata.backend
    assert "graphs" not in metadata.backend
