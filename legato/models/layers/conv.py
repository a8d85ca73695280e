"""Streaming causal convolutions, computed as matmuls: `(x, history, lengths) -> (y, next history)`.

A signal is processed in windows. The history holds exactly the past input positions that later outputs need; it starts
as zeros. The outputs of consecutive windows, concatenated, equal the output of one window over the whole signal.

The layout is [B, N, channels]. The receptive field of an output position is then a slice of a row, so a convolution is
one matmul of these slices with the weight, without any transpose.

Strided convolutions: every window must start at a multiple of the stride, so its length and each of `lengths` must be
multiples of the stride (`StateError` otherwise). The caller holds incomplete strides back (the codec encoder keeps such
samples in its own history) and pads the last window of a signal.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional

from legato.errors import StateError

BLOCK_VALUES = 2**20
"""Maximum size of the im2col matrix of one matmul, in values: 4 MiB in float32, so that it stays in the CPU cache."""

Activation: TypeAlias = Callable[[Tensor, Tensor], object]
"""`activation(x, out)` writes its result to `out`, which may be `x`."""


def identity(x: Tensor, out: Tensor) -> None:
    """The default activation: copy."""
    out.copy_(x)


def next_history(joined: Tensor, keep: int, lengths: Tensor | None, dim: int) -> Tensor:
    """The history after a window: the last `keep` positions (axis `dim`) of each row's history and valid input.

    `joined`: history (`keep` positions) followed by the window. `lengths` [B]: valid positions of each row's window;
    None: all. A row of length 0 keeps its history.
    """
    if lengths is None:
        return joined.narrow(dim, joined.shape[dim] - keep, keep)
    shape = [1] * joined.dim()
    shape[0], shape[dim] = joined.shape[0], keep
    index = lengths[:, None] + torch.arange(keep, device=joined.device)
    size = list(joined.shape)
    size[dim] = keep
    return joined.gather(dim, index.view(shape).expand(size))


class ConvWeight(nn.Module):
    """Weight and bias of a convolution, with the names and shapes of the official checkpoint.

    `weight` [A, B, time] is stored in memory as [A, time, B], so that the matrix of the matmul is a view. `bias`
    [channels] or None. A replacement of the weight must have the same strides; otherwise each call copies it.
    """

    def __init__(self, outer: int, inner: int, kernel_size: int, channels: int | None) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outer, kernel_size, inner).transpose(1, 2))
        self.bias = nn.Parameter(torch.zeros(channels)) if channels is not None else None
        nn.init.kaiming_uniform_(self.weight, a=5**0.5)

    @property
    def time_major(self) -> Tensor:
        """The weight as [A, time, B], contiguous."""
        return self.weight.transpose(1, 2)


class CausalLayer(nn.Module, ABC):
    """Base class of the convolutions: a weight, and a history of past input positions."""

    def __init__(self, kernel: ConvWeight, in_channels: int, history_length: int) -> None:
        super().__init__()
        self.conv = kernel
        self.in_channels = in_channels
        self.history_length = history_length
        """Number of past input positions that the next window needs."""

    @property
    def history_shape(self) -> tuple[int, int]:
        """Shape of one row's history: positions, channels."""
        return self.history_length, self.in_channels

    def forward(
        self,
        x: Tensor,
        history: Tensor,
        lengths: Tensor | None = None,
        activation: Activation = identity,
        residual: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Convolve one window.

        `x` [B, N, in]; `history` [B, history_length, in]; `lengths` [B]: valid positions of each row of `x`, None: all.
        `activation` is applied to `x` first, and the history holds its results. `residual` is added to the output and
        has its shape. Returns y [B, N_out, out] and the next history, which shares no memory with `x`. The contents of
        y after a row's valid positions are undefined. Raises `StateError` if N is not a multiple of the stride.
        """
        keep = self.history_length
        joined = x.new_empty(x.shape[0], keep + x.shape[1], x.shape[2])
        joined[:, :keep] = history
        activation(x, joined[:, keep:])
        y = self.compute(joined)
        return y if residual is None else y.add_(residual), next_history(joined, keep, lengths, 1).clone()

    @abstractmethod
    def compute(self, joined: Tensor) -> Tensor:
        """The output for `joined`, history and window: [B, history_length + N, in], contiguous."""


class CausalConv1d(CausalLayer):
    """Causal convolution: output i depends on inputs up to `i * stride + stride - 1`.

    The history has the length of the receptive field minus one stride. `conv.weight` [out, in, kernel], `conv.bias`
    [out].
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int,
        *,
        stride: int = 1,
        dilation: int = 1,
        bias: bool = True,
    ) -> None:
        span = (kernel_size - 1) * dilation + 1
        kernel = ConvWeight(out_channels, in_channels, kernel_size, out_channels if bias else None)
        super().__init__(kernel, in_channels, max(span - stride, 0))
        self.kernel_size, self.stride, self.dilation = kernel_size, stride, dilation

    def compute(self, joined: Tensor) -> Tensor:
        """[B, N / stride, out]: matmul of the receptive fields (im2col) with the weight."""
        new = joined.shape[1] - self.history_length
        if new % self.stride:
            raise StateError(
                f"a window of {new} positions is not a multiple of the stride {self.stride}: "
                "hold the remaining positions back until the stride is complete"
            )
        fields = self._receptive_fields(joined, new // self.stride)
        block = max(BLOCK_VALUES // (fields.shape[0] * self.kernel_size * self.in_channels), 1)
        if fields.shape[1] <= block:
            return self._matmul(fields)
        return torch.cat([self._matmul(part) for part in torch.split(fields, block, dim=1)], dim=1)

    def _receptive_fields(self, joined: Tensor, count: int) -> Tensor:
        """The receptive fields of `count` outputs, as an overlapping view [B, count, kernel, in]."""
        rows, positions, width = joined.shape
        return joined.as_strided(
            (rows, count, self.kernel_size, width),
            (positions * width, self.stride * width, self.dilation * width, 1),
        )

    def _matmul(self, fields: Tensor) -> Tensor:
        rows, count, taps, width = fields.shape
        matrix = self.conv.time_major.flatten(1)
        y = functional.linear(fields.reshape(rows * count, taps * width), matrix, self.conv.bias)
        return y.view(rows, count, matrix.shape[0])


class CausalDepthwiseConv1d(CausalLayer):
    """Depthwise causal convolution, accumulated in float32 or wider. `conv.weight` [channels, 1, kernel]."""

    def __init__(self, channels: int, kernel_size: int) -> None:
        super().__init__(ConvWeight(channels, 1, kernel_size, channels), channels, kernel_size - 1)

    def compute(self, joined: Tensor) -> Tensor:
        """[B, N, channels]: the sum over taps, oldest first."""
        count = joined.shape[1] - self.history_length
        wide = joined if joined.dtype == torch.float64 else joined.float()
        taps = self.conv.weight[:, 0].t().to(wide.dtype, memory_format=torch.contiguous_format)
        assert self.conv.bias is not None
        y = torch.addcmul(self.conv.bias.to(wide.dtype), wide[:, :count], taps[0])
        for index, tap in enumerate(taps[1:], start=1):
            y.addcmul_(wide[:, index : index + count], tap)
        return y.to(joined.dtype)


class CausalConvTranspose1d(CausalLayer):
    """Causal transposed convolution: each input position yields `stride` final output positions.

    The kernel size is a multiple of the stride. If it is larger, output blocks overlap: block t also depends on the
    `kernel / stride - 1` inputs before t, which are the history. Each block is therefore one matmul, adds the bias once
    and sums in a fixed order; overlap-add would sum in an order that depends on the windows. The official layer trims
    `kernel - stride` positions on the right; they are never computed here. `conv.weight` [in, out, kernel], `conv.bias`
    [out].
    """

    def __init__(self, in_channels: int, out_channels: int, kernel_size: int, *, stride: int) -> None:
        if kernel_size % stride:
            raise ValueError(f"kernel size {kernel_size} is not a multiple of stride {stride}")
        super().__init__(
            ConvWeight(in_channels, out_channels, kernel_size, out_channels), in_channels, kernel_size // stride - 1
        )
        self.stride = stride

    def compute(self, joined: Tensor) -> Tensor:
        """[B, N * stride, out]: matmul of each position and its predecessors, newest first, with the weight."""
        keep, rows = self.history_length, joined.shape[0]
        count = joined.shape[1] - keep
        assert self.conv.bias is not None
        by_age = [joined[:, keep - age : keep - age + count] for age in range(keep + 1)]
        inputs = torch.stack(by_age, dim=-1).view(rows * count, self.in_channels * (keep + 1))
        matrix = self.conv.time_major.reshape(inputs.shape[1], -1)
        y = torch.addmm(self.conv.bias.repeat(self.stride), inputs, matrix)
        return y.view(rows, count * self.stride, self.conv.bias.shape[0])


class ConvHistories:
    """The convolution histories of a model during one forward call.

    `run` passes each convolution its history, in execution order, and collects the next one. Convolutions without a
    history run as well and receive none.
    """

    def __init__(self, histories: Sequence[Tensor]) -> None:
        self._old = tuple(histories)
        self._new: list[Tensor] = []

    def run(
        self,
        layer: CausalLayer,
        x: Tensor,
        lengths: Tensor | None = None,
        activation: Activation = identity,
        residual: Tensor | None = None,
    ) -> Tensor:
        """Run `layer` over the window `x` with its history; the other arguments are those of `CausalLayer.forward`."""
        if layer.history_length == 0:
            return layer.forward(x, x[:, :0], activation=activation, residual=residual)[0]
        y, history = layer.forward(x, self._old[len(self._new)], lengths, activation, residual)
        self._new.append(history)
        return y

    def updated(self) -> tuple[Tensor, ...]:
        """The next histories. Raises `StateError` if a history was not used."""
        if len(self._new) != len(self._old):
            raise StateError(f"{len(self._old)} histories were given, but {len(self._new)} convolutions ran")
        return tuple(self._new)


def history_shapes(module: nn.Module) -> tuple[tuple[int, int], ...]:
    """History shapes (positions, channels) of the convolutions in `module` that have one, in order of registration."""
    layers = (layer for layer in module.modules() if isinstance(layer, CausalLayer))
    return tuple(layer.history_shape for layer in layers if layer.history_length > 0)
