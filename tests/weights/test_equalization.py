"""Equalization does not change the function, and removes what outlier channels cost in a quantized model."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from legato.backends.base import Backend
from legato.backends.select import build_backend
from legato.models.layers.decoder_layer import DecoderLayer
from legato.models.layers.norm import RMSNorm
from legato.verify.predictor import measure_quantization_error
from legato.verify.target import QUICK, Target
from legato.weights.equalization import column_scales, equalization
from legato.weights.loading import LoadedModel, load_model
from legato.weights.quantization import quantize_modules
from legato.weights.quantized_checkpoint import write_quantized
from legato.weights.quantized_linear import Int8Linear
from tests.conftest import TinyCheckpoint

FACTOR = 32.0
CHANNELS = [1, 6, 9, 14, 22, 30]


def norm_outliers(tensors: dict[str, Tensor], layer: str) -> None:
    """Six channels of both norms, compensated in the next linears."""
    for norm, readers in (
        ("input_layernorm", ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")),
        ("post_attention_layernorm", ("mlp.gate_proj", "mlp.up_proj")),
    ):
        tensors[f"{layer}.{norm}.weight"][CHANNELS] *= FACTOR
        for reader in readers:
            tensors[f"{layer}.{reader}.weight"][:, CHANNELS] /= FACTOR


def down_outliers(tensors: dict[str, Tensor], layer: str) -> None:
    """Six inputs of `down_proj`."""
    tensors[f"{layer}.mlp.up_proj.weight"][CHANNELS] *= FACTOR
    tensors[f"{layer}.mlp.down_proj.weight"][:, CHANNELS] /= FACTOR


def output_outliers(tensors: dict[str, Tensor], layer: str) -> None:
    """A value of each key head, which all of its queries read in `o_proj`."""
    values, output = tensors[f"{layer}.self_attn.v_proj.weight"], tensors[f"{layer}.self_attn.o_proj.weight"]
    head_dim = tensors[f"{layer}.self_attn.q_norm.weight"].numel()
    values.view(-1, head_dim, values.shape[1])[:, 3] *= FACTOR
    output.view(len(output), -1, head_dim)[:, :, 3] /= FACTOR


Outliers = Callable[[dict[str, Tensor], str], None]
KINDS: list[Outliers] = [norm_outliers, down_outliers, output_outliers]


def with_outliers(folder: Path, target: Path, outliers: Outliers) -> Path:
    """A copy of a checkpoint with outliers in every layer of talker and code predictor. The function is the same."""
    shutil.copytree(folder, target)
    tensors = load_file(target / "model.safetensors")
    layers = {name.rpartition(".input_layernorm.")[0] for name in tensors if ".input_layernorm." in name}
    assert layers
    for layer in layers:
        outliers(tensors, layer)
    save_file(tensors, target / "model.safetensors", metadata={"format": "pt"})
    return target


def logit_error(folder: Path, quant: str) -> float:
    """Mean error of the logits relative to their spread."""
    exact, quantized = (Target.of(backend(folder, mode), QUICK, seed=0) for mode in ("none", quant))
    errors = measure_quantization_error(exact, quantized, positions=24)
    return sum(each.error for each in errors) / len(errors)


def backend(folder: Path, quant: str) -> Backend:
    return build_backend(load_model(folder, quant=quant))


@pytest.mark.parametrize("quant", ["int8", "int4"])
@pytest.mark.parametrize("outliers", KINDS)
def test_outliers_do_not_increase_the_error(
    outliers: Outliers, quant: str, tiny_checkpoint: TinyCheckpoint, tmp_path: Path
) -> None:
    plain = tiny_checkpoint("tiny-custom-voice")
    changed = with_outliers(plain, tmp_path / "outliers", outliers)
    assert logit_error(changed, "none") == 0
    assert logit_error(changed, quant) < 1.2 * logit_error(plain, quant)


@pytest.mark.parametrize("outliers", KINDS)
def test_without_equalization_they_do(
    outliers: Outliers, tiny_checkpoint: TinyCheckpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control of the test above."""
    plain = logit_error(tiny_checkpoint("tiny-custom-voice"), "int4")
    monkeypatch.setattr("legato.weights.equalization.MAX_EXPONENT", 0)
    changed = with_outliers(tiny_checkpoint("tiny-custom-voice"), tmp_path / "outliers", outliers)
    assert logit_error(changed, "int4") > 1.2 * plain


@pytest.mark.parametrize("kind", ["tiny-custom-voice", "tiny-embedded"])
def test_scales_do_not_change_the_function(kind: str, tiny_checkpoint: TinyCheckpoint, tmp_path: Path) -> None:
    """Applied to the weights, hidden states are bit-identical."""
    model = load_model(with_outliers(tiny_checkpoint(kind), tmp_path / kind, norm_outliers))
    for module in (model.talker, model.code_predictor):
        scales = equalization(module)
        assert any((factors != 1).any() for factors in scales.columns.values())
        assert all(powers_of_two(factors) for factors in (*scales.columns.values(), *scales.divisors.values()))
    x = torch.randn(1, 9, model.config.talker.stack.hidden_size, generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        before = model.talker.forward_uncached(x)
        equalize_in_place(model.talker)
        assert torch.equal(model.talker.forward_uncached(x), before)


def powers_of_two(factors: Tensor) -> bool:
    return all(math.frexp(float(factor))[0] == 0.5 for factor in factors)


def equalize_in_place(module: nn.Module) -> None:
    scales = equalization(module)
    for part in module.modules():
        if isinstance(part, nn.Linear):
            part.weight = nn.Parameter(scales.weight(part), requires_grad=False)
        elif isinstance(part, DecoderLayer):
            for name in ("input_layernorm", "post_attention_layernorm"):
                norm = part.get_submodule(name)
                assert isinstance(norm, RMSNorm)
                part._modules[name] = scales.norm(norm) or norm


def test_stored_norms_belong_to_the_stored_weights(tiny_checkpoint: TinyCheckpoint, tmp_path: Path) -> None:
    source = with_outliers(tiny_checkpoint("tiny-custom-voice"), tmp_path / "outliers", norm_outliers)
    write_quantized(source, tmp_path / "int8", "int8")
    stored, loaded = load_model(tmp_path / "int8"), load_model(source, quant="int8")
    for parts in zip(named(stored), named(loaded), strict=True):
        assert torch.equal(*parts)
    norm = stored.talker.model.layers[0].get_submodule("input_layernorm").get_parameter("weight")
    assert norm.max() < FACTOR / 2


def named(model: LoadedModel) -> list[Tensor]:
    return [tensor for part in (model.talker, model.code_predictor) for tensor in part.state_dict().values()]


def test_columns_with_a_large_share_get_more_levels() -> None:
    """A channel of the residual stream that is 32 times larger than the others, and not compensated."""
    weight = torch.randn(256, 512, generator=torch.Generator().manual_seed(1))
    moments = torch.ones(512, dtype=torch.float64)
    assert (column_scales([weight], moments) == 1).all()
    moments[7] = FACTOR**2
    factors = column_scales([weight], moments)
    assert factors[7] > 1
    assert (factors[8:] == 1).all()


def test_modules_without_weights_are_not_equalized(tiny_checkpoint: TinyCheckpoint) -> None:
    """Quantized checkpoints are loaded into meta modules; their norms are stored equalized."""
    talker = load_model(tiny_checkpoint("tiny-custom-voice")).talker.to("meta")
    assert equalization(talker).columns == {}
    assert any(isinstance(part, Int8Linear) for part in quantize_modules(talker, "int8").modules())
