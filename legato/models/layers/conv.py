"""Causal convolutions over time, in windows: each is `(x, history, lengths?) -> (y, history)`.

Owns weights alone; the history is the caller's, starts as zeros, and is exactly the past input that later output needs.
Joined windows equal one window over everything. Knows neither frames nor streams.

Contract of position alignment: a window always starts on a multiple of the stride, so the number of positions in a
window (and each of `lengths`) must be a multiple of the stride; a window that is not is refused. Whoever has a rest
keeps it until the stride is complete (the codec encoder keeps loose samples in its own history). The last window of a
signal is completed by its owner, who alone knows how the signal is to be padded.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from legato.errors import StateError


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


class CausalConv1d(nn.Module):
    """Convolution whose output at position t sees inputs up to the end of t's stride and nothing later.

    Output i sees inputs up to `i * stride + stride - 1`; the past beyond the window comes from the history, of
    `history_length` positions of input. A new signal starts with a history of zeros.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int,
        *,
        stride: int = 1,
        dilation: int = 1,
        groups: int = 1,
        bias: bool = True,
    ) -> None:
        super().__init__()
        self.conv = nn.Conv1d(
            in_channels, out_channels, kernel_size, stride=stride, dilation=dilation, groups=groups, bias=bias
        )
        self.in_channels = in_channels
        self.stride = stride
        self.span = (kernel_size - 1) * dilation + 1

    @property
    def history_length(self) -> int:
        """Past input positions that the next window needs: what the kernel spans beyond one stride."""
        return max(self.span - self.stride, 0)

    @property
    def history_shape(self) -> tuple[int, int]:
        """Channels and positions of one row's history."""
        return self.in_channels, self.history_length

    def forward(self, x: Tensor, history: Tensor, lengths: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """`x` [B, in, N], `history` [B, in, history_length], `lengths` [B] valid positions of each row.

        Returns y [B, out, N / stride] and the next history. What y holds behind a row's valid positions is
        meaningless. Raises StateError where N is not a multiple of the stride.
        """
        if self.stride > 1 and x.shape[-1] % self.stride:
            raise StateError(
                f"a window of {x.shape[-1]} positions is not a multiple of the stride {self.stride}: "
                "hold the rest back until the stride is complete"
            )
        keep = self.history_length
        if keep == 0:
            y: Tensor = self.conv(x)
            return y, history
        joined = torch.cat((history.to(x.dtype), x), dim=-1)
        y = self.conv(joined)
        return y, advance(joined, keep, lengths, -1)


class CausalConvTranspose1d(nn.Module):
    """Transposed convolution: every input position gives `stride` output positions, at once and for good.

    Kernels longer than the stride overlap: output block t also holds what the inputs before t left there. The history
    is those inputs (`history_length` of them), so the bias is added once and the sum has one order. A new signal starts
    with zeros. The official trim of `kernel - stride` positions on the right is what this never emits.
    """

    def __init__(
        self, in_channels: int, out_channels: int, kernel_size: int, *, stride: int, groups: int = 1, bias: bool = True
    ) -> None:
        super().__init__()
        self.conv = nn.ConvTranspose1d(
            in_channels,
            out_channels,
            kernel_size,
            stride=stride,
            groups=groups,
            bias=bias,
            output_padding=max(stride - kernel_size, 0),
        )
        self.in_channels = in_channels
        self.stride = stride
        self.kernel_size = kernel_size

    @property
    def history_length(self) -> int:
        """Past input positions whose output reaches into the next block."""
        return (self.kernel_size - 1) // self.stride

    @property
    def history_shape(self) -> tuple[int, int]:
        """Channels and positions of one row's history."""
        return self.in_channels, self.history_length

    def forward(self, x: Tensor, history: Tensor, lengths: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """`x` [B, in, N], `history` [B, in, history_length], `lengths` [B] valid positions of each row (of `x`).

        Returns y [B, out, N * stride] and the next history.
        """
        keep = self.history_length
        if keep == 0:
            y: Tensor = self.conv(x)
            return y, history
        joined = torch.cat((history.to(x.dtype), x), dim=-1)
        y = functional.conv_transpose1d(
            joined, self.conv.weight, self.conv.bias, stride=self.stride, groups=self.conv.groups
        )
        y = y.narrow(-1, keep * self.stride, x.shape[-1] * self.stride)
        return y, advance(joined, keep, lengths, -1)


class HistoryWalk:
    """Hands the histories of a stack to its convolutions in the order in which they run, and collects the next ones.

    Lives for one forward call. Layers without a history are run and take none.
    """

    def __init__(self, histories: Sequence[Tensor]) -> None:
        self._old = tuple(histories)
        self._new: list[Tensor] = []

    def run(self, layer: CausalConv1d | CausalConvTranspose1d, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Run `layer` over the window `x` with the next history."""
        if layer.history_length == 0:
            alone: tuple[Tensor, Tensor] = layer(x, x[..., :0])
            return alone[0]
        out: tuple[Tensor, Tensor] = layer(x, self._old[len(self._new)], lengths)
        self._new.append(out[1])
        return out[0]

    def done(self) -> tuple[Tensor, ...]:
        """The next histories; StateError if some were not used."""
        if len(self._new) != len(self._old):
            raise StateError(f"{len(self._old)} histories for {len(self._new)} convolutions")
        return tuple(self._new)


def history_shapes(module: nn.Module) -> tuple[tuple[int, int], ...]:
    """Channels and positions of the history of every convolution in `module` that has one, in order of registration."""
    layers = (each for each in module.modules() if isinstance(each, CausalConv1d | CausalConvTranspose1d))
    return tuple(layer.history_shape for layer in layers if layer.history_length > 0)
