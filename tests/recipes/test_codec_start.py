"""The closed form that the codec decoder's training starts from hands on the mel spectrogram; shuffled it fails."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

RECIPE = Path(__file__).resolve().parents[2] / "recipes" / "embedded"
Net = Any
"""`CodecDecoder` of the recipe, whose files are loaded by path and have no types here."""
LARGEST_MEAN_ERROR = 0.05
"""In nepers. What the smaller bases of half and quarter frames leave out; the codes themselves lose 0.28."""


@pytest.fixture
def recipe(monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Any, Any]:
    """The files codec_net, codec_start and codec_tables."""
    monkeypatch.syspath_prepend(str(RECIPE))
    net, start, tables = (importlib.import_module(f"codec_{name}") for name in ("net", "start", "tables"))
    return net, start, tables


@torch.no_grad()
def front(net: Net, codes: Tensor) -> Tensor:
    """What the first convolution at 100 Hz is given, [8 T, 256]."""
    x: Tensor = net.pre_conv(net.quantizer(codes[None]))
    x = net.pre_transformer(x.transpose(1, 2)).transpose(1, 2)
    for upsample, convnext in net.upsample:
        x = convnext(upsample(x))
    return x[0].T


def smooth_codes(tables: Any, frames: int) -> Tensor:
    """Codes as speech has them: those of stacked frames near the tables' own entries."""
    generator = torch.Generator().manual_seed(3)
    codes = torch.randint(tables.books.shape[1], (frames, len(tables.books)), generator=generator)
    codes[:, 1:] = tables.encode(tables.books[0][codes[:, 0]] @ tables.basis.T + tables.mean)[:, 1:]
    return codes


def mean_error(net: Net, tables: Any, start: Any, codes: Tensor) -> float:
    made = front(net, codes)[:, : start.MEL_BANDS] * start.SCALE
    hops = tables.decode(codes).view(len(made), start.MEL_BANDS)
    band_mean = tables.mean.view(-1, start.MEL_BANDS).mean(0)
    return float((made + band_mean - hops).abs().mean())


def test_mel_spectrogram_is_handed_on(recipe: tuple[Any, Any, Any]) -> None:
    codec_net, start, codec_tables = recipe
    tables = codec_tables.Tables(**codec_tables.load_file(str(codec_tables.SHIPPED)))
    codes = smooth_codes(tables, 600)
    net = codec_net.CodecDecoder(codec_net.CodecSizes(), tables.books).eval()
    torch.manual_seed(0)
    assert mean_error(net, tables, start, codes) > 10 * LARGEST_MEAN_ERROR  # random weights do not
    start.start_from_tables(net, tables, codes)
    assert mean_error(net, tables, start, codes[:200]) < LARGEST_MEAN_ERROR
    halves = net.upsample[0][0].conv.weight.data
    halves.copy_(halves.flip(2))  # the two halves of a frame in the wrong order
    assert mean_error(net, tables, start, codes[:200]) > 5 * LARGEST_MEAN_ERROR


def test_front_and_rest_are_all_that_is_trained(recipe: tuple[Any, Any, Any]) -> None:
    codec_net, start, _ = recipe
    net = codec_net.CodecDecoder(codec_net.CodecSizes())
    front_ids = {id(parameter) for parameter in start.front_parameters(net)}
    blocks = [block for _, block in net.upsample]
    behind = {id(p) for part in (net.decoder, *blocks) for p in part.parameters()}
    assert front_ids.isdisjoint(behind)
    assert front_ids | behind == {id(parameter) for parameter in net.parameters()}
