"""The worked example of docs/streaming-convolution.md and its kin: whole numbers, so equal means equal to the bit.

Owns nothing. The oracle of the example is plain Python, not a convolution.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from legato.models.layers.conv import CausalConv1d, CausalConvTranspose1d, CausalDepthwiseConv1d, CausalLayer
from legato.verify.compare import Comparison, compare
from legato.verify.lines import CheckLine, Kind, Where
from legato.verify.tolerance import INTEGERS

GROUP = "worked convolution example"
INPUTS = 12
KERNEL = (1, 2, 3)
WINDOWS = {"windows of 3, 4, 5": (3, 4, 5), "windows of 1": (1,) * INPUTS, "one window": (INPUTS,)}


def check_convolution(device: torch.device) -> Iterator[CheckLine]:
    """The example against arithmetic by hand, its relatives against one window, and what a dropped history does."""
    layer = integer_layer(CausalConv1d(1, 1, len(KERNEL), bias=False), device)
    by_hand = torch.tensor(worked_by_hand(), device=device)
    for name, sizes in WINDOWS.items():
        yield _line("kernel 1, 2, 3 over 0 to 11", name, device, _compare(in_windows(layer, sizes), by_hand))
    for name, other, sizes in relatives(device):
        whole, _ = other.forward(inputs(device), fresh(other, device))
        setting = f"windows of {', '.join(map(str, sizes))}"
        yield _line(name, setting, device, _compare(in_windows(other, sizes), whole.flatten()))
    for name, forgetful in (("kernel 1, 2, 3", layer), *((name, each) for name, each, _ in relatives(device))):
        whole, _ = forgetful.forward(inputs(device), fresh(forgetful, device))
        forgotten = _compare(in_windows(forgetful, (4, 4, 4), keep=False), whole.flatten())
        yield _line(f"history dropped: {name}", "windows of 4", device, forgotten, Kind.CONTROL)


def worked_by_hand() -> list[float]:
    """Output t is 1 x[t-2] + 2 x[t-1] + 3 x[t], with zeros before the first input."""
    x = [0, 0, *range(INPUTS)]
    return [float(sum(weight * x[t + at] for at, weight in enumerate(KERNEL))) for t in range(INPUTS)]


def relatives(device: torch.device) -> list[tuple[str, CausalLayer, tuple[int, ...]]]:
    """Layers with a dilation, a stride, channels apart, a transposed kernel; windows are multiples of the stride."""
    return [
        ("dilation 2", integer_layer(CausalConv1d(1, 1, 3, dilation=2), device), (3, 4, 5)),
        ("stride 2", integer_layer(CausalConv1d(1, 1, 4, stride=2), device), (2, 4, 6)),
        ("depthwise", integer_layer(CausalDepthwiseConv1d(1, 3), device), (3, 4, 5)),
        ("transposed, stride 2", integer_layer(CausalConvTranspose1d(1, 1, 4, stride=2), device), (3, 4, 5)),
    ]


def integer_layer(layer: CausalLayer, device: torch.device) -> CausalLayer:
    """The layer with weights 1, 2, 3, ... and, where it has one, a bias of 7."""
    with torch.no_grad():
        weight = layer.conv.weight
        weight.copy_(torch.arange(1.0, 1.0 + weight.numel()).view(weight.shape))
        if layer.conv.bias is not None:
            layer.conv.bias.fill_(7.0)
    return layer.requires_grad_(False).to(device=device, dtype=torch.float32)


def inputs(device: torch.device) -> Tensor:
    """0, 1, ..., 11 as one row and one channel."""
    return torch.arange(float(INPUTS), device=device).view(1, INPUTS, 1)


def fresh(layer: CausalLayer, device: torch.device) -> Tensor:
    """The history of a new signal."""
    return torch.zeros(1, *layer.history_shape, device=device)


def in_windows(layer: CausalLayer, sizes: Sequence[int], *, keep: bool = True) -> Tensor:
    """Outputs of the windows, joined; every window starts afresh without `keep`."""
    x = inputs(layer.conv.weight.device)
    history, parts = fresh(layer, x.device), []
    for window in torch.split(x, list(sizes), dim=1):
        y, after = layer.forward(window, history)
        history = after if keep else history
        parts.append(y)
    return torch.cat(parts, dim=1).flatten()


def _compare(got: Tensor, oracle: Tensor) -> Comparison:
    return compare(got, oracle, ("position",), stage="output", limit=INTEGERS.limit)


def _line(claim: str, setting: str, device: torch.device, comparison: Comparison, kind: Kind = Kind.CLAIM) -> CheckLine:
    where = Where(str(device), "float32", 1, "one layer")
    return CheckLine(GROUP, claim, setting, where, comparison, INTEGERS, kind)
