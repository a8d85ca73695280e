"""The codec's convolutions as matmuls with packed weights (`panels.py`), and the SnakeBeta that is fused into them.

As in the reference layers, the history is passed in and returned.
"""

from __future__ import annotations

from ctypes import byref

import torch
from torch import Tensor, nn

from legato.backends.cpu.panels import NO_OP, FusedOp, Packed, Panels, address, prepared
from legato.errors import StateError
from legato.kernels.codec_library import SNAKE, CodecLibrary
from legato.models.codec.upsample import SNAKE_EPS, SnakeBeta
from legato.models.layers.conv import (
    Activation,
    CausalConv1d,
    CausalConvTranspose1d,
    CausalDepthwiseConv1d,
    CausalLayer,
    identity,
)


class PackedSnake(Packed, SnakeBeta):
    """SnakeBeta, x + gain * sin(frequency * x)^2. A packed layer applies it to its input while reading it."""

    def __init__(self, snake: SnakeBeta) -> None:
        nn.Module.__init__(self)
        self.alpha, self.beta = snake.alpha, snake.beta
        self.frequency: Tensor
        self.gain: Tensor
        self.register_buffer("frequency", snake.alpha.detach().float().exp(), persistent=False)
        self.register_buffer("gain", (snake.beta.detach().float().exp() + SNAKE_EPS).reciprocal(), persistent=False)
        self.op = FusedOp(SNAKE, self.frequency, self.gain)


def _fused_op(activation: Activation) -> FusedOp:
    if activation is identity:
        return NO_OP
    if not isinstance(activation, PackedSnake):
        raise StateError(f"a packed layer cannot apply {activation!r} to its input")
    return activation.op


class PackedCausal(Packed, CausalLayer):
    """A causal convolution as one matmul. With a stride, its outputs are `stride` positions side by side."""

    panels: Panels
    stride: int
    after = NO_OP
    """The activation that follows the layer, if it is fused into it."""

    def forward(
        self,
        x: Tensor,
        history: Tensor,
        lengths: Tensor | None = None,
        activation: Activation = identity,
        residual: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """See `CausalLayer`."""
        past = history if self.history_length else None
        y, kept = self.panels.run(
            x, past, lengths=lengths, before=_fused_op(activation), after=self.after, residual=residual
        )
        y = y.view(x.shape[0], x.shape[1] * self.stride, self.panels.out_features // self.stride)
        return y, history if kept is None else kept

    def compute(self, joined: Tensor) -> Tensor:  # noqa: ARG002
        """Not supported: the kernel joins history and window itself."""
        raise StateError("a packed layer joins history and window itself: call forward")


class PackedConv1d(PackedCausal, CausalConv1d):
    """A convolution without a stride."""

    def __init__(self, layer: CausalConv1d, library: CodecLibrary) -> None:
        assert layer.stride == 1
        nn.Module.__init__(self)
        self.in_channels, self.history_length = layer.in_channels, layer.history_length
        self.kernel_size, self.stride, self.dilation = layer.kernel_size, layer.stride, layer.dilation
        self.panels = Panels(layer.conv.time_major, layer.conv.bias, library, layer.dilation)


class PackedConvTranspose1d(PackedCausal, CausalConvTranspose1d):
    """A transposed convolution, as a convolution whose outputs are `stride` positions side by side."""

    def __init__(self, layer: CausalConvTranspose1d, library: CodecLibrary) -> None:
        nn.Module.__init__(self)
        self.in_channels, self.history_length = layer.in_channels, layer.history_length
        self.stride = layer.stride
        bias = layer.conv.bias
        assert bias is not None
        newest_first = layer.conv.time_major.view(self.in_channels, -1, self.stride, bias.shape[0])
        oldest_first = newest_first.flip(1)  # [in, age, phase, out]
        self.panels = Panels(oldest_first.permute(2, 3, 1, 0).flatten(0, 1), bias.repeat(self.stride), library)


class PackedDepthwise(Packed, CausalDepthwiseConv1d):
    """A depthwise convolution with the LayerNorm that follows it."""

    def __init__(self, layer: CausalDepthwiseConv1d, norm: nn.LayerNorm, library: CodecLibrary) -> None:
        nn.Module.__init__(self)
        self.in_channels, self.history_length = layer.in_channels, layer.history_length
        self.library, self.dtype, self.eps = library, layer.conv.weight.dtype, norm.eps
        self.in_features, self.out_features = layer.history_length + 1, layer.in_channels
        bias = layer.conv.bias
        assert bias is not None
        self.taps: Tensor
        self.bias: Tensor
        self.norm: Tensor
        self.shift: Tensor
        parts = (layer.conv.weight[:, 0].t(), bias, norm.weight, norm.bias)
        for name, part in zip(("taps", "bias", "norm", "shift"), parts, strict=True):
            self.register_buffer(name, part.detach().float().contiguous(), persistent=False)

    def forward(
        self,
        x: Tensor,
        history: Tensor,
        lengths: Tensor | None = None,
        activation: Activation = identity,
        residual: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """See `CausalLayer`. The result is normalized; `activation` and `residual` are not supported."""
        assert activation is identity
        assert residual is None
        y, macs = torch.empty_like(x, memory_format=torch.contiguous_format), x.numel() * self.in_features
        width = self.out_features
        call, kept, _alive = prepared(x, history, self.dtype, width, lengths, FusedOp(eps=self.eps), macs)
        assert kept is not None
        call.y = address(y)
        scratch = torch.empty(call.threads, width)
        addresses = (address(each) for each in (self.taps, self.bias, self.norm, self.shift, scratch))
        self.library.depthwise(byref(call), *addresses, self.in_features, width, int(self.dtype == torch.bfloat16))
        return y, kept
