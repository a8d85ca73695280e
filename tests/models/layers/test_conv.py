"""Convolutions in windows equal one call, bit-exactly on integers. Each claim has a negative control."""

from __future__ import annotations

import copy
import re
from pathlib import Path

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

from legato.errors import StateError
from legato.models.layers import conv as conv_module
from legato.models.layers.conv import (
    CausalConv1d,
    CausalConvTranspose1d,
    CausalDepthwiseConv1d,
    CausalLayer,
    ConvHistories,
    ConvWeight,
    history_shapes,
)

WORKED_INPUT = torch.arange(12.0).view(1, 12, 1)
WORKED_OUTPUT = [0.0, 3, 8, 14, 20, 26, 32, 38, 44, 50, 56, 62]


def worked_layer() -> CausalConv1d:
    """One channel, kernel [1, 2, 3], no bias."""
    layer = CausalConv1d(1, 1, 3, bias=False)
    layer.conv.weight.data.copy_(torch.tensor([1.0, 2.0, 3.0]))
    return layer.requires_grad_(False)


def zeros(layer: CausalLayer, x: Tensor) -> Tensor:
    return x.new_zeros(x.shape[0], *layer.history_shape)


def in_windows(layer: CausalLayer, x: Tensor, sizes: list[int], *, drop: bool = False) -> Tensor:
    """Concatenated outputs. `drop`: every window starts from the initial history."""
    history, parts, start = zeros(layer, x), [], 0
    for size in sizes:
        y, history = layer(x[:, start : start + size], history)
        history = zeros(layer, x) if drop else history
        parts.append(y)
        start += size
    assert start == x.shape[1]
    return torch.cat(parts, dim=1)


def set_integer_weights(module: nn.Module, seed: int) -> None:
    """Small integer weights: float32 sums of them are exact in any order."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in module.parameters():
        parameter.data.copy_(torch.randint(-4, 5, parameter.shape, generator=generator))
    module.requires_grad_(False)


def test_worked_example() -> None:
    layer = worked_layer()
    whole, _ = layer(WORKED_INPUT, zeros(layer, WORKED_INPUT))
    assert whole.flatten().tolist() == WORKED_OUTPUT
    windowed = in_windows(layer, WORKED_INPUT, [3, 4, 5])
    assert float((windowed - whole).abs().max()) == 0.0


def test_control_worked_example_without_history() -> None:
    layer = worked_layer()
    windowed = in_windows(layer, WORKED_INPUT, [3, 4, 5], drop=True).flatten()
    assert windowed[3] == 9.0
    assert WORKED_OUTPUT[3] == 14.0
    assert windowed.tolist() != WORKED_OUTPUT


def test_code_of_the_documentation_page_runs() -> None:
    page = (Path(__file__).parents[3] / "docs" / "streaming-convolution.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert len(blocks) == 1
    exec(compile(blocks[0], "streaming-convolution.md", "exec"), {})
    assert " | ".join(str(int(value)) for value in WORKED_OUTPUT) in page


sizes = st.lists(st.integers(1, 6), min_size=1, max_size=8)


def random_integers(rows: int, positions: int, channels: int, seed: int) -> Tensor:
    """Small integers [rows, positions, channels]."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-9, 10, (rows, positions, channels), generator=generator).float()


@settings(max_examples=60, deadline=None)
@given(
    kernel=st.integers(1, 7), stride=st.integers(1, 4), dilation=st.integers(1, 3), steps=sizes, seed=st.integers(0, 99)
)
def test_convolution_in_random_windows(kernel: int, stride: int, dilation: int, steps: list[int], seed: int) -> None:
    """The reference is torch's convolution over the whole signal."""
    layer = CausalConv1d(4, 6, kernel, stride=stride, dilation=dilation)
    set_integer_weights(layer, seed)
    windows = [step * stride for step in steps]
    x = random_integers(2, sum(windows), 4, seed)
    whole, _ = layer(x, zeros(layer, x))
    assert torch.equal(in_windows(layer, x, windows), whole)
    padded = functional.pad(x.transpose(1, 2), (layer.history_length, 0))
    oracle = functional.conv1d(padded, layer.conv.weight, layer.conv.bias, stride=stride, dilation=dilation)
    assert torch.equal(whole, oracle.transpose(1, 2)[:, : sum(steps)])
    assert whole.shape[1] == sum(steps)


@settings(max_examples=30, deadline=None)
@given(kernel=st.integers(1, 7), steps=sizes, seed=st.integers(0, 99))
def test_depthwise_convolution_in_random_windows(kernel: int, steps: list[int], seed: int) -> None:
    layer = CausalDepthwiseConv1d(4, kernel)
    set_integer_weights(layer, seed)
    x = random_integers(2, sum(steps), 4, seed)
    whole, _ = layer(x, zeros(layer, x))
    assert torch.equal(in_windows(layer, x, steps), whole)
    padded = functional.pad(x.transpose(1, 2), (kernel - 1, 0))
    oracle = functional.conv1d(padded, layer.conv.weight, layer.conv.bias, groups=4)
    assert torch.equal(whole, oracle.transpose(1, 2))


@settings(max_examples=60, deadline=None)
@given(blocks=st.integers(1, 4), stride=st.integers(1, 4), steps=sizes, seed=st.integers(0, 99))
def test_transposed_convolution_in_random_windows(blocks: int, stride: int, steps: list[int], seed: int) -> None:
    layer = CausalConvTranspose1d(4, 6, blocks * stride, stride=stride)
    set_integer_weights(layer, seed)
    x = random_integers(2, sum(steps), 4, seed)
    whole, _ = layer(x, zeros(layer, x))
    assert torch.equal(in_windows(layer, x, steps), whole)
    assert whole.shape[1] == x.shape[1] * stride
    untrimmed = functional.conv_transpose1d(x.transpose(1, 2), layer.conv.weight, layer.conv.bias, stride=stride)
    assert torch.equal(whole, untrimmed.transpose(1, 2)[:, : whole.shape[1]])


def test_transposed_kernel_must_be_a_multiple_of_the_stride() -> None:
    with pytest.raises(ValueError, match="kernel size 5 is not a multiple of stride 2"):
        CausalConvTranspose1d(4, 4, 5, stride=2)


def test_long_window_is_split_into_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = CausalConv1d(4, 6, 3, dilation=2)
    set_integer_weights(layer, 5)
    x = random_integers(2, 50, 4, 5)
    whole, history = layer(x, zeros(layer, x))
    for values in (2 * 3 * 4 * 7, 1):  # blocks of 7 positions of two rows, then of one, the minimum
        monkeypatch.setattr(conv_module, "BLOCK_VALUES", values)
        blocks, after = layer(x, zeros(layer, x))
        assert torch.equal(blocks, whole)
        assert torch.equal(after, history)


def test_history_holds_the_output_of_the_activation() -> None:
    """Applied before the call or passed as an argument: same output and history, and the input is not modified."""
    layer = CausalConv1d(4, 6, 3)
    set_integer_weights(layer, 6)
    x = random_integers(2, 9, 4, 6)
    kept = x.clone()

    def doubled(given: Tensor, out: Tensor) -> None:
        torch.mul(given, 2, out=out)

    inside = layer.forward(x, zeros(layer, x), activation=doubled)
    apart = layer.forward(2 * x, zeros(layer, x))
    assert all(torch.equal(one, other) for one, other in zip(inside, apart, strict=True))
    assert torch.equal(x, kept)


def test_matmul_weight_is_a_view() -> None:
    """Also after a change of dtype, `load_state_dict` and `deepcopy`."""
    kernel = ConvWeight(3, 4, 5, 3)
    others = [copy.deepcopy(kernel), kernel.double(), ConvWeight(3, 4, 5, 3)]
    others[2].load_state_dict({"weight": torch.randn(3, 4, 5), "bias": torch.zeros(3)})
    for each in (kernel, *others):
        assert each.weight.shape == (3, 4, 5)
        assert each.time_major.flatten(1).data_ptr() == each.weight.data_ptr()
        assert torch.equal(each.time_major, each.weight.permute(0, 2, 1))


@pytest.mark.parametrize("layer", [CausalConv1d(4, 4, 3, dilation=3), CausalConvTranspose1d(4, 4, 6, stride=2)])
def test_control_dropped_history(layer: CausalLayer) -> None:
    set_integer_weights(layer, 1)
    x = torch.randint(1, 9, (1, 12, 4)).float()
    assert torch.equal(in_windows(layer, x, [5, 7]), in_windows(layer, x, [12]))
    assert not torch.equal(in_windows(layer, x, [5, 7], drop=True), in_windows(layer, x, [12]))


@settings(max_examples=40, deadline=None)
@given(
    transposed=st.booleans(),
    windows=st.lists(st.lists(st.integers(0, 4), min_size=3, max_size=3), min_size=2, max_size=6),
)
def test_rows_of_different_lengths(transposed: bool, windows: list[list[int]]) -> None:
    layer: CausalLayer = CausalConvTranspose1d(4, 2, 6, stride=3) if transposed else CausalConv1d(4, 2, 3, dilation=2)
    set_integer_weights(layer, 3)
    totals = [sum(lengths[row] for lengths in windows) for row in range(3)]
    assume(min(totals) > 0)
    signal = random_integers(3, max(totals), 4, 7)
    rate = 3 if transposed else 1
    history, index = zeros(layer, signal), [0, 0, 0]
    parts: list[list[Tensor]] = [[], [], []]
    for lengths in windows:
        window = torch.full((3, 4, 4), 1e6)  # [rows, positions, channels]
        for row, take in enumerate(lengths):
            window[row, :take] = signal[row, index[row] : index[row] + take]
        y, history = layer(window, history, torch.tensor(lengths))
        for row, take in enumerate(lengths):
            parts[row].append(y[row, : take * rate])
            index[row] += take
    for row, total in enumerate(totals):
        alone = signal[row : row + 1, :total]
        assert torch.equal(torch.cat(parts[row]), layer(alone, zeros(layer, alone))[0][0])


def test_window_with_an_incomplete_stride_is_refused() -> None:
    layer = CausalConv1d(1, 1, 4, stride=2)
    with pytest.raises(StateError, match="5 positions is not a multiple of the stride 2"):
        layer(torch.zeros(1, 5, 1), torch.zeros(1, 2, 1))


@pytest.mark.parametrize(
    ("layer", "length"),
    [
        (CausalConv1d(1, 1, 7), 6),
        (CausalConv1d(1, 1, 7, dilation=9), 54),
        (CausalConv1d(1, 1, 16, stride=8), 8),
        (CausalConv1d(1, 1, 2, stride=4), 0),
        (CausalConvTranspose1d(1, 1, 2, stride=2), 0),
        (CausalConvTranspose1d(1, 1, 16, stride=8), 1),
        (CausalConvTranspose1d(1, 1, 24, stride=8), 2),
        (CausalDepthwiseConv1d(3, 7), 6),
    ],
)
def test_history_length_follows_from_the_layer(layer: CausalLayer, length: int) -> None:
    assert layer.history_length == length


def test_histories_are_used_in_order_and_counted() -> None:
    stack = nn.ModuleList([CausalConv1d(1, 2, 3), CausalConv1d(2, 2, 1), CausalConvTranspose1d(2, 1, 4, stride=2)])
    shapes = history_shapes(stack)
    assert shapes == ((2, 1), (1, 2))
    histories = ConvHistories([torch.zeros(1, *shape) for shape in shapes])
    x = torch.ones(1, 5, 1)
    for layer in stack:
        assert isinstance(layer, CausalLayer)
        x = histories.run(layer, x)
    assert [tuple(each.shape[1:]) for each in histories.updated()] == list(shapes)
    with pytest.raises(StateError, match="2 histories were given, but 0"):
        ConvHistories([torch.zeros(1, 1, 2)] * 2).updated()
