"""Closed-form start of the codec decoder preserves the mel spectrogram. Negative control: swapped halves."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

RECIPE = Path(__file__).resolve().parents[2] / "recipes" / "embedded"
Net = Any
"""`CodecDecoder` of the recipe. Recipe files are loaded by path and are untyped here."""
LARGEST_MEAN_ERROR = 0.05
"""In nepers: the error of the truncated half- and quarter-frame bases. The codes themselves have an error of 0.28."""


@pytest.fixture
def recipe(monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Any, Any]:
    """The modules codec_net, codec_start and codec_tables."""
    monkeypatch.syspath_prepend(str(RECIPE))
    net, start, tables = (importlib.import_module(f"codec_{name}") for name in ("net", "start", "tables"))
    return net, start, tables


@torch.no_grad()
def front(net: Net, codes: Tensor) -> Tensor:
    """Input of the first convolution at 100 Hz, [8 T, 256]."""
    x: Tensor = net.pre_conv(net.quantizer(codes[None]))
    x = net.pre_transformer(x.transpose(1, 2)).transpose(1, 2)
    for upsample, convnext in net.upsample:
        x = convnext(upsample(x))
    return x[0].T


def smooth_codes(tables: Any, frames: int) -> Tensor:
    """Speech-like codes: the codes of stacked frames near the entries of the first codebook."""
    generator = torch.Generator().manual_seed(3)
    codes = torch.randint(tables.codebooks.shape[1], (frames, len(tables.codebooks)), generator=generator)
    codes[:, 1:] = tables.encode(tables.codebooks[0][codes[:, 0]] @ tables.basis.T + tables.mean)[:, 1:]
    return codes


def mean_error(net: Net, tables: Any, start: Any, codes: Tensor) -> float:
    made = front(net, codes)[:, : start.MEL_BANDS] * start.SCALE
    hops = tables.decode(codes).view(len(made), start.MEL_BANDS)
    band_mean = tables.mean.view(-1, start.MEL_BANDS).mean(0)
    return float((made + band_mean - hops).abs().mean())


def test_mel_spectrogram_is_preserved(recipe: tuple[Any, Any, Any]) -> None:
    codec_net, start, codec_tables = recipe
    tables = codec_tables.Tables.read(codec_tables.SHIPPED)
    codes = smooth_codes(tables, 600)
    net = codec_net.CodecDecoder(codec_net.CodecSizes(), tables.codebooks).eval()
    torch.manual_seed(0)
    assert mean_error(net, tables, start, codes) > 10 * LARGEST_MEAN_ERROR  # negative control: random weights
    start.init_from_tables(net, tables, codes)
    assert mean_error(net, tables, start, codes[:200]) < LARGEST_MEAN_ERROR
    halves = net.upsample[0][0].conv.weight.data
    halves.copy_(halves.flip(2))  # the two halves of a frame in the wrong order
    assert mean_error(net, tables, start, codes[:200]) > 5 * LARGEST_MEAN_ERROR


def test_front_and_other_parameters_cover_the_net(recipe: tuple[Any, Any, Any]) -> None:
    codec_net, start, _ = recipe
    net = codec_net.CodecDecoder(codec_net.CodecSizes())
    front_ids = {id(parameter) for parameter in start.front_parameters(net)}
    blocks = [block for _, block in net.upsample]
    other_ids = {id(p) for part in (net.decoder, *blocks) for p in part.parameters()}
    assert front_ids.isdisjoint(other_ids)
    assert front_ids | other_ids == {id(parameter) for parameter in net.parameters()}
