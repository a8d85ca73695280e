"""Causal convolutions over time as matrix products, in windows: each is `(x, history, lengths?) -> (y, history)`.

Owns weights alone; the history is the caller's, starts as zeros, and is exactly the past input that later output needs.
Joined windows equal one window over everything. Knows neither frames nor streams.

Positions are rows: `x` is [B, N, channels]. What a kernel sees at one position is then a strided row of the joined
input, and a convolution is the product of these rows with the weights, without a transpose anywhere.

Contract of position alignment: a window always starts on a multiple of the stride, so the number of positions in a
window (and each of `lengths`) must be a multiple of the stride; a window that is not is refused. Whoever has a rest
keeps it until the stride is complete (the codec encoder keeps loose samples in its own history). The last window of a
signal is completed by its owner, who alone knows how the signal is to be padded.
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
"""Input values that are laid out for one product: 4 MiB in float32, which caches hold. Longer windows take several."""

Activation: TypeAlias = Callable[[Tensor, Tensor], object]
"""Writes a function of its first argument to its second, which may be the same tensor."""


def carry(x: Tensor, out: Tensor) -> None:
    """The activation of a layer that has none."""
    out.copy_(x)


def advance(joined: Tensor, keep: int, lengths: Tensor | None, dim: int) -> Tensor:
    """The last `keep` positions (axis `dim`) of each row's past and valid input: the history after a window.

    `joined` is history (`keep` positions) followed by the window; row b of the window has `lengths[b]` valid positions,
    all of them where `lengths` is None. A row with length 0 gets its old history back.
    """
    if lengths is None:
        return joined.narrow(dim, joined.shape[dim] - keep, keep)
    shape = [1] * joined.dim()
    shape[0], shape[dim] = joined.shape[0], keep
    index = lengths[:, None] + torch.arange(keep, device=joined.device)
    size = list(joined.shape)
    size[dim] = keep
    return joined.gather(dim, index.view(shape).expand(size))


class Kernel(nn.Module):
    """A convolution's weight and bias under their official names and shapes, in the memory order of its product.

    `weight` [A, B, time] lies in memory as [A, time, B], so that the product's matrix is a view; `bias` [channels] or
    None. Whoever puts another tensor in place of a weight keeps these strides, or every call pays for a copy.
    """

    def __init__(self, outer: int, inner: int, kernel_size: int, channels: int | None) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outer, kernel_size, inner).transpose(1, 2))
        self.bias = nn.Parameter(torch.zeros(channels)) if channels is not None else None
        nn.init.kaiming_uniform_(self.weight, a=5**0.5)

    @property
    def by_time(self) -> Tensor:
        """The weight as [A, time, B], contiguous."""
        return self.weight.transpose(1, 2)


class CausalLayer(nn.Module, ABC):
    """What all convolutions here share: a kernel, and the past input that joins a window to the one before."""

    def __init__(self, kernel: Kernel, in_channels: int, history_length: int) -> None:
        super().__init__()
        self.conv = kernel
        self.in_channels = in_channels
        self.history_length = history_length
        """Past input positions that the next window needs."""

    @property
    def history_shape(self) -> tuple[int, int]:
        """Positions and channels of one row's history."""
        return self.history_length, self.in_channels

    def forward(
        self,
        x: Tensor,
        history: Tensor,
        lengths: Tensor | None = None,
        before: Activation = carry,
        plus: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """`x` [B, N, in], `history` [B, history_length, in], `lengths` [B] valid positions of each row of `x`.

        `before` is applied to the window first; the history holds its results. Returns y [B, positions out, out], to
        which `plus` of the same shape was added, and the next history, which shares no memory with the window. What y
        holds behind a row's valid positions is meaningless. Raises StateError where a strided layer's N is not a
        multiple of its stride.
        """
        keep = self.history_length
        joined = x.new_empty(x.shape[0], keep + x.shape[1], x.shape[2])
        joined[:, :keep] = history
        before(x, joined[:, keep:])
        y = self.compute(joined)
        return y if plus is None else y.add_(plus), advance(joined, keep, lengths, 1).clone()

    @abstractmethod
    def compute(self, joined: Tensor) -> Tensor:
        """The layer's output for `joined` [B, history_length + N, in], contiguous."""


class CausalConv1d(CausalLayer):
    """Convolution whose output at position t sees inputs up to the end of t's stride and nothing later.

    Output i sees inputs up to `i * stride + stride - 1`. The history is what the kernel spans beyond one stride.
    `conv.weight` [out, in, kernel], `conv.bias` [out].
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
        kernel = Kernel(out_channels, in_channels, kernel_size, out_channels if bias else None)
        super().__init__(kernel, in_channels, max(span - stride, 0))
        self.kernel_size, self.stride, self.dilation = kernel_size, stride, dilation

    def compute(self, joined: Tensor) -> Tensor:
        """[B, N / stride, out]: the rows that the kernel sees, times the weights."""
        fresh = joined.shape[1] - self.history_length
        if fresh % self.stride:
            raise StateError(
                f"a window of {fresh} positions is not a multiple of the stride {self.stride}: "
                "hold the rest back until the stride is complete"
            )
        seen = self._seen(joined, fresh // self.stride)
        at_once = max(BLOCK_VALUES // (seen.shape[0] * self.kernel_size * self.in_channels), 1)
        if seen.shape[1] <= at_once:
            return self._product(seen)
        return torch.cat([self._product(part) for part in torch.split(seen, at_once, dim=1)], dim=1)

    def _seen(self, joined: Tensor, count: int) -> Tensor:
        """A view [B, count, kernel, in] of what the kernel sees at each position; neighbours overlap."""
        rows, positions, width = joined.shape
        return joined.as_strided(
            (rows, count, self.kernel_size, width),
            (positions * width, self.stride * width, self.dilation * width, 1),
        )

    def _product(self, seen: Tensor) -> Tensor:
        rows, count, taps, width = seen.shape
        matrix = self.conv.by_time.flatten(1)
        y = functional.linear(seen.reshape(rows * count, taps * width), matrix, self.conv.bias)
        return y.view(rows, count, matrix.shape[0])


class CausalDepthwiseConv1d(CausalLayer):
    """Convolution of each channel by itself; it sums in float32 at least. `conv.weight` [channels, 1, kernel]."""

    def __init__(self, channels: int, kernel_size: int) -> None:
        super().__init__(Kernel(channels, 1, kernel_size, channels), channels, kernel_size - 1)

    def compute(self, joined: Tensor) -> Tensor:
        """[B, N, channels]: one tap after the other, the oldest first."""
        count = joined.shape[1] - self.history_length
        wide = joined if joined.dtype == torch.float64 else joined.float()
        taps = self.conv.weight[:, 0].t().to(wide.dtype, memory_format=torch.contiguous_format)
        assert self.conv.bias is not None
        y = torch.addcmul(self.conv.bias.to(wide.dtype), wide[:, :count], taps[0])
        for at, tap in enumerate(taps[1:], start=1):
            y.addcmul_(wide[:, at : at + count], tap)
        return y.to(joined.dtype)


class CausalConvTranspose1d(CausalLayer):
    """Transposed convolution: every input position gives `stride` output positions, at once and for good.

    The kernel is a whole number of strides. Where it is more than one, blocks overlap: output block t also holds what
    the inputs before t left there. The history is those inputs, so that a block is one product, the bias is added once,
    and the sum has one order. The official trim of `kernel - stride` positions on the right is what this never emits.
    `conv.weight` [in, out, kernel], `conv.bias` [out].
    """

    def __init__(self, in_channels: int, out_channels: int, kernel_size: int, *, stride: int) -> None:
        if kernel_size % stride:
            raise ValueError(f"a transposed kernel of {kernel_size} is not a whole number of strides of {stride}")
        super().__init__(
            Kernel(in_channels, out_channels, kernel_size, out_channels), in_channels, kernel_size // stride - 1
        )
        self.stride = stride

    def compute(self, joined: Tensor) -> Tensor:
        """[B, N * stride, out]: inputs, newest first, times what each leaves in a block."""
        keep, rows = self.history_length, joined.shape[0]
        count = joined.shape[1] - keep
        assert self.conv.bias is not None
        reaching = [joined[:, keep - age : keep - age + count] for age in range(keep + 1)]
        inputs = torch.stack(reaching, dim=-1).view(rows * count, self.in_channels * (keep + 1))
        leaves = self.conv.by_time.reshape(inputs.shape[1], -1)
        y = torch.addmm(self.conv.bias.repeat(self.stride), inputs, leaves)
        return y.view(rows, count * self.stride, self.conv.bias.shape[0])


class HistoryWalk:
    """Hands the histories of a stack to its convolutions in the order in which they run, and collects the next ones.

    Lives for one forward call. Layers without a history are run and take none.
    """

    def __init__(self, histories: Sequence[Tensor]) -> None:
        self._old = tuple(histories)
        self._new: list[Tensor] = []

    def run(
        self,
        layer: CausalLayer,
        x: Tensor,
        lengths: Tensor | None = None,
        before: Activation = carry,
        plus: Tensor | None = None,
    ) -> Tensor:
        """Run `layer` over the window `x`, after the activation `before`, with the next history; `plus` is added."""
        if layer.history_length == 0:
            return layer.forward(x, x[:, :0], before=before, plus=plus)[0]
        y, history = layer.forward(x, self._old[len(self._new)], lengths, before, plus)
        self._new.append(history)
        return y

    def done(self) -> tuple[Tensor, ...]:
        """The next histories; StateError if some were not used."""
        if len(self._new) != len(self._old):
            raise StateError(f"{len(self._old)} histories for {len(self._new)} convolutions")
        return tuple(self._new)


def history_shapes(module: nn.Module) -> tuple[tuple[int, int], ...]:
    """Positions and channels of the history of every convolution in `module` that has one, in order of registration."""
    layers = (each for each in module.modules() if isinstance(each, CausalLayer))
    return tuple(layer.history_shape for layer in layers if layer.history_length > 0)
