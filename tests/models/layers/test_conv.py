"""Convolutions in windows equal convolutions on the whole, to the bit on integers. Each claim has a control."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

from legato.errors import StateError
from legato.models.layers.conv import CausalConv1d, CausalConvTranspose1d, HistoryWalk, history_shapes

Conv = CausalConv1d | CausalConvTranspose1d
WORKED_INPUT = torch.arange(12.0).view(1, 1, 12)
WORKED_OUTPUT = [0.0, 3, 8, 14, 20, 26, 32, 38, 44, 50, 56, 62]


def worked_layer() -> CausalConv1d:
    """One channel, kernel [1, 2, 3], no bias."""
    layer = CausalConv1d(1, 1, 3, bias=False)
    layer.conv.weight.data.copy_(torch.tensor([1.0, 2.0, 3.0]))
    return layer.requires_grad_(False)


def zeros(layer: Conv, x: Tensor) -> Tensor:
    return x.new_zeros(x.shape[0], *layer.history_shape)


def in_windows(layer: Conv, x: Tensor, sizes: list[int], *, drop: bool = False) -> Tensor:
    """Joined outputs; with `drop` every window starts without the past."""
    history, parts, start = zeros(layer, x), [], 0
    for size in sizes:
        y, history = layer(x[..., start : start + size], history)
        history = zeros(layer, x) if drop else history
        parts.append(y)
        start += size
    assert start == x.shape[-1]
    return torch.cat(parts, dim=-1)


def integers(module: nn.Module, seed: int) -> None:
    """Small integer weights: float32 sums of them are exact in any order."""
    drawn = torch.Generator().manual_seed(seed)
    for parameter in module.parameters():
        parameter.data.copy_(torch.randint(-4, 5, parameter.shape, generator=drawn))
    module.requires_grad_(False)


def test_worked_example() -> None:
    layer = worked_layer()
    whole, _ = layer(WORKED_INPUT, zeros(layer, WORKED_INPUT))
    assert whole.flatten().tolist() == WORKED_OUTPUT
    windowed = in_windows(layer, WORKED_INPUT, [3, 4, 5])
    assert float((windowed - whole).abs().max()) == 0.0


def test_worked_example_fails_without_its_history() -> None:
    layer = worked_layer()
    windowed = in_windows(layer, WORKED_INPUT, [3, 4, 5], drop=True).flatten()
    assert windowed[3] == 9.0
    assert WORKED_OUTPUT[3] == 14.0
    assert windowed.tolist() != WORKED_OUTPUT


def test_the_doc_page_runs() -> None:
    page = (Path(__file__).parents[3] / "docs" / "streaming-convolution.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert len(blocks) == 1
    exec(compile(blocks[0], "streaming-convolution.md", "exec"), {})
    assert " | ".join(str(int(value)) for value in WORKED_OUTPUT) in page


sizes = st.lists(st.integers(1, 6), min_size=1, max_size=8)


@settings(max_examples=60, deadline=None)
@given(
    kernel=st.integers(1, 7),
    stride=st.integers(1, 4),
    dilation=st.integers(1, 3),
    groups=st.sampled_from([1, 2]),
    steps=sizes,
    seed=st.integers(0, 99),
)
def test_any_convolution_in_any_windows(
    kernel: int, stride: int, dilation: int, groups: int, steps: list[int], seed: int
) -> None:
    layer = CausalConv1d(4, 6, kernel, stride=stride, dilation=dilation, groups=groups)
    integers(layer, seed)
    windows = [step * stride for step in steps]
    x = torch.randint(-9, 10, (2, 4, sum(windows)), generator=torch.Generator().manual_seed(seed)).float()
    whole, _ = layer(x, zeros(layer, x))
    assert torch.equal(in_windows(layer, x, windows), whole)
    padded = functional.pad(x, (layer.history_length, 0))
    assert torch.equal(whole, layer.conv(padded)[..., : x.shape[-1] // stride])
    assert whole.shape[-1] == x.shape[-1] // stride


@settings(max_examples=60, deadline=None)
@given(
    kernel=st.integers(1, 9),
    stride=st.integers(1, 4),
    groups=st.sampled_from([1, 2]),
    steps=sizes,
    seed=st.integers(0, 99),
)
def test_any_transposed_convolution_in_any_windows(
    kernel: int, stride: int, groups: int, steps: list[int], seed: int
) -> None:
    layer = CausalConvTranspose1d(4, 6, kernel, stride=stride, groups=groups)
    integers(layer, seed)
    x = torch.randint(-9, 10, (2, 4, sum(steps)), generator=torch.Generator().manual_seed(seed)).float()
    whole, _ = layer(x, zeros(layer, x))
    assert torch.equal(in_windows(layer, x, steps), whole)
    assert whole.shape[-1] == x.shape[-1] * stride
    untrimmed = functional.conv_transpose1d(
        x, layer.conv.weight, layer.conv.bias, stride=stride, groups=groups, output_padding=max(stride - kernel, 0)
    )
    assert torch.equal(whole, untrimmed[..., : whole.shape[-1]])


@pytest.mark.parametrize("layer", [CausalConv1d(4, 4, 3, dilation=3), CausalConvTranspose1d(4, 4, 5, stride=2)])
def test_a_dropped_history_shows(layer: Conv) -> None:
    integers(layer, 1)
    x = torch.randint(1, 9, (1, 4, 12)).float()
    assert torch.equal(in_windows(layer, x, [5, 7]), in_windows(layer, x, [12]))
    assert not torch.equal(in_windows(layer, x, [5, 7], drop=True), in_windows(layer, x, [12]))


@settings(max_examples=40, deadline=None)
@given(
    transposed=st.booleans(),
    turns=st.lists(st.lists(st.integers(0, 4), min_size=3, max_size=3), min_size=2, max_size=6),
)
def test_rows_of_different_lengths(transposed: bool, turns: list[list[int]]) -> None:
    layer: Conv = CausalConvTranspose1d(4, 2, 7, stride=3) if transposed else CausalConv1d(4, 2, 3, dilation=2)
    integers(layer, 3)
    totals = [sum(turn[row] for turn in turns) for row in range(3)]
    assume(min(totals) > 0)
    signal = torch.randint(-9, 10, (3, 4, max(totals)), generator=torch.Generator().manual_seed(7)).float()
    rate = layer.stride if transposed else 1
    history, at = zeros(layer, signal), [0, 0, 0]
    parts: list[list[Tensor]] = [[], [], []]
    for turn in turns:
        window = torch.full((3, 4, 4), 1e6)
        for row, take in enumerate(turn):
            window[row, :, :take] = signal[row, :, at[row] : at[row] + take]
        y, history = layer(window, history, torch.tensor(turn))
        for row, take in enumerate(turn):
            parts[row].append(y[row, :, : take * rate])
            at[row] += take
    for row, total in enumerate(totals):
        alone = signal[row : row + 1, :, :total]
        assert torch.equal(torch.cat(parts[row], dim=-1), layer(alone, zeros(layer, alone))[0][0])


def test_a_window_inside_a_stride_is_refused() -> None:
    layer = CausalConv1d(1, 1, 4, stride=2)
    with pytest.raises(StateError, match="5 positions is not a multiple of the stride 2"):
        layer(torch.zeros(1, 1, 5), torch.zeros(1, 1, 2))


@pytest.mark.parametrize(
    ("layer", "length"),
    [
        (CausalConv1d(1, 1, 7), 6),
        (CausalConv1d(1, 1, 7, dilation=9), 54),
        (CausalConv1d(1, 1, 16, stride=8), 8),
        (CausalConv1d(1, 1, 2, stride=4), 0),
        (CausalConvTranspose1d(1, 1, 2, stride=2), 0),
        (CausalConvTranspose1d(1, 1, 16, stride=8), 1),
        (CausalConvTranspose1d(1, 1, 17, stride=8), 2),
    ],
)
def test_history_length_follows_from_the_layer(layer: Conv, length: int) -> None:
    assert layer.history_length == length


def test_a_walk_serves_a_stack_in_order_and_counts() -> None:
    stack = nn.ModuleList([CausalConv1d(1, 2, 3), CausalConv1d(2, 2, 1), CausalConvTranspose1d(2, 1, 4, stride=2)])
    shapes = history_shapes(stack)
    assert shapes == ((1, 2), (2, 1))
    walk = HistoryWalk([torch.zeros(1, *shape) for shape in shapes])
    x = torch.ones(1, 1, 5)
    for layer in stack:
        assert isinstance(layer, CausalConv1d | CausalConvTranspose1d)
        x = walk.run(layer, x)
    assert [tuple(each.shape[1:]) for each in walk.done()] == list(shapes)
    with pytest.raises(StateError, match="2 histories for 0"):
        HistoryWalk([torch.zeros(1, 1, 2)] * 2).done()
