"""The recipe's training net and the engine's decoder compute the same function. Negative controls: changed graphs."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from legato.config.model import CodecDecoderConfig
from legato.models.codec.decoder import CodecDecoder
from legato.models.codec.quantizer import codebook_table

RECIPE = Path(__file__).resolve().parents[2] / "recipes" / "embedded"
FRAMES = 40
TrainingNet = Any
"""`CodecDecoder` of the recipe. Recipe files are loaded by path and are untyped here."""
TOLERANCE = 1e-5
"""Relative to the peak sample. All is float64 except the training net's RoPE angles and its output samples."""


@pytest.fixture(scope="module")
def codec_net() -> ModuleType:
    spec = importlib.util.spec_from_file_location("recipe_codec_net", RECIPE / "codec_net.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look up their module
    spec.loader.exec_module(module)
    return module


def small_net(codec_net: ModuleType, **changes: object) -> TrainingNet:
    """A small net with random weights, all large enough to affect the output."""
    sizes: dict[str, object] = dict(  # noqa: C408  keyword form, as in CodecSizes(...)
        latent_dim=12, codebook_dim=8, codebook_size=16, decoder_dim=16, hidden_size=8, intermediate_size=12,
        num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=2, head_dim=4, sliding_window=9,
        num_quantizers=3, upsample_rates=(2, 3), upsampling_ratios=(2, 1),
    )  # fmt: skip
    net = codec_net.CodecDecoder(codec_net.CodecSizes(**{**sizes, **changes})).double().eval()
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.copy_(torch.randn_like(parameter) * (0.5 if parameter.dim() == 1 else 0.3))
        net.decoder[-1].conv.weight.mul_(1e-4)
        net.decoder[-1].conv.bias.mul_(1e-4)
    return net


def engine_decoder(net: TrainingNet) -> CodecDecoder:
    sizes = {name: value for name, value in vars(net.sizes).items() if name in CodecDecoderConfig.__slots__}
    decoder = CodecDecoder(CodecDecoderConfig(**sizes, attention_window=net.sizes.sliding_window)).double().eval()
    weights = dict(net.state_dict())
    for name in [name for name in weights if name.endswith("embedding_sum")]:
        stem = name.removesuffix("embedding_sum")
        weights[stem + "table"] = codebook_table(weights.pop(name), weights.pop(stem + "cluster_usage")).double()
    decoder.load_state_dict(weights)
    return decoder


@torch.no_grad()
def largest_difference(net: TrainingNet, decoder: CodecDecoder) -> float:
    """Largest difference on random codes, relative to the peak sample."""
    codes = torch.randint(net.sizes.codebook_size, (2, FRAMES, net.sizes.num_quantizers))
    engine: Tensor = decoder(decoder.initial_history(2), codes)[0]
    peak = float(engine.abs().max())
    assert 0 < peak < 1, "the engine clamps samples, the training net does not"
    return float((net(codes).double() - engine).abs().max()) / peak


def test_training_net_equals_engine(codec_net: ModuleType) -> None:
    net = small_net(codec_net)
    assert largest_difference(net, engine_decoder(net)) < TOLERANCE


@pytest.mark.parametrize("fault", ["window", "units", "snake"])
def test_changed_graph_is_detected(codec_net: ModuleType, fault: str) -> None:
    net = small_net(codec_net)
    decoder = engine_decoder(net)
    if fault == "window":
        for layer in net.pre_transformer.layers:
            layer.self_attn.window += 1
    elif fault == "units":
        net.decoder[2].skip_units = True
    else:
        with torch.no_grad():
            net.decoder[1].block[0].alpha.add_(0.1)
    assert largest_difference(net, decoder) > 100 * TOLERANCE
