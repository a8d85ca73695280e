"""Codec matmuls with weights packed in panels (`Panels`), and linears built on them (`PackedLinear`). See `codec.c`.

A packed weight is a copy in the order in which the kernel reads it. Outputs are bit-identical for any window length,
batch and number of threads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from ctypes import byref
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from legato.errors import StateError
from legato.kernels.codec_library import IDENTITY, SNAKE, Call, CodecLibrary, Kernel
from legato.kernels.threads import num_threads

LINE = 64
"""Bytes of a cache line."""
MACS_PER_THREAD = 2**18
"""Minimum multiply-adds per thread: with fewer, synchronization costs more than another thread saves."""


class Packed(nn.Module):
    """Base class of modules with packed weights, which can be executed, but not copied, moved or converted."""

    def __deepcopy__(self, memo: dict[int, object]) -> nn.Module:
        raise StateError(f"{type(self).__name__} has packed weights: copy the module of the loaded model instead")

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> nn.Module:  # noqa: ARG002
        raise StateError(
            f"{type(self).__name__} has packed weights and cannot be moved or converted: convert the module of the "
            "loaded model and build a backend from it"
        )


@dataclass(frozen=True, slots=True)
class FusedOp:
    """An operation that a kernel applies to the input or output of a matmul, with float32 parameters per channel.

    `first` and `second`: the weight of a norm; frequency and gain of SnakeBeta; None for GELU and GATED (SwiGLU).
    """

    kind: int = IDENTITY
    first: Tensor | None = None
    second: Tensor | None = None
    eps: float = 0.0


NO_OP = FusedOp()


class Panels(nn.Module):
    """A matmul: its weight [n, taps * width], packed in panels (see `packed`), and its bias in float32."""

    def __init__(self, by_tap: Tensor, bias: Tensor | None, library: CodecLibrary, dilation: int = 1) -> None:
        """`by_tap` [n, taps, width]."""
        super().__init__()
        self.out_features, self.taps, self.width = by_tap.shape
        self.in_features, self.dilation, self.library = self.taps * self.width, dilation, library
        self.panels: Tensor
        self.bias: Tensor | None
        self.register_buffer("panels", packed(by_tap.detach().flatten(1), library.panel), persistent=False)
        self.register_buffer("bias", None if bias is None else bias.detach().float(), persistent=False)
        self.dtype, half = by_tap.dtype, int(by_tap.dtype == torch.bfloat16)
        tile_steps = steps_per_tile(self.width // 2) if half and library.amx and self.out_features > 1 else 0
        self.args = Kernel(
            weight=address(self.panels),
            bias=address(self.bias),
            taps=self.taps,
            width=self.width,
            dilation=dilation,
            n=self.out_features,
            half=half,
            tile_steps=tile_steps,
        )

    def run(
        self,
        x: Tensor,
        past: Tensor | None = None,
        *,
        lengths: Tensor | None = None,
        before: FusedOp = NO_OP,
        after: FusedOp = NO_OP,
        scale: Tensor | None = None,
        residual: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Return y [B, N, n] and the next past, for `x` [B, N, width] and its `past` [B, keep, width].

        y = after(matmul(before(past, x))) * scale + residual. `after` is SnakeBeta or nothing.
        """
        assert after.kind in (IDENTITY, SNAKE)
        rows, count, _ = x.shape
        y = x.new_empty(rows, count, self.out_features)
        macs = rows * count * self.in_features * self.out_features
        call, kept, _alive = prepared(x, past, self.dtype, self.width, lengths, before, macs)
        residual = None if residual is None else residual.contiguous()
        call.turn, call.gain = address(after.first), address(after.second)
        call.scale, call.plus, call.y = address(scale), address(residual), address(y)
        self.library.convolve(byref(self.args), byref(call))
        return y, kept


def prepared(
    x: Tensor,
    past: Tensor | None,
    dtype: torch.dtype,
    width: int,
    lengths: Tensor | None,
    before: FusedOp,
    macs: int,
) -> tuple[Call, Tensor | None, tuple[Tensor | None, ...]]:
    """The input arguments of a kernel call, the tensor for the next past, and tensors to keep alive during the call."""
    if x.dtype != dtype or (past is not None and past.dtype != dtype):
        raise StateError(f"weights packed in {dtype} need {dtype} inputs, not {x.dtype}")
    rows, count, _ = x.shape
    keep = 0 if past is None else past.shape[1]
    x, past = x.contiguous(), None if past is None else past.contiguous()
    lengths = None if lengths is None else lengths.contiguous()
    # An odd number of cache lines between positions: positions that are read together then use different cache sets.
    pitch = (-(-width * x.element_size() // LINE) | 1) * LINE
    read_in_place = keep == 0 and before.kind == IDENTITY
    joined = None if read_in_place else torch.empty(rows * (keep + count) * pitch, dtype=torch.uint8)
    kept = None if past is None else torch.empty_like(past)
    threads = max(1, min(num_threads(), macs // MACS_PER_THREAD))
    call = Call(
        x=address(x),
        past=address(past),
        joined=address(joined),
        kept=address(kept),
        lengths=address(lengths),
        first=address(before.first),
        second=address(before.second),
        batch=rows,
        positions=count,
        keep=keep,
        pitch=pitch,
        before=before.kind,
        threads=threads,
        eps=before.eps,
    )
    return call, kept, (x, past, joined, lengths)


class PackedLinear(Packed):
    """Linears with the same input, as one matmul with concatenated outputs."""

    def __init__(self, linears: Sequence[nn.Linear], library: CodecLibrary) -> None:
        super().__init__()
        weight = torch.cat([each.weight.detach() for each in linears])
        bias = None if linears[0].bias is None else torch.cat([each.bias.detach() for each in linears])
        self.panels = Panels(weight[:, None], bias, library)

    def forward(self, x: Tensor) -> Tensor:
        """`x` [B, N, inputs] -> [B, N, outputs]."""
        return self.run(x)

    def run(
        self, x: Tensor, *, before: FusedOp = NO_OP, scale: Tensor | None = None, residual: Tensor | None = None
    ) -> Tensor:
        """linear(before(x)) * scale + residual."""
        return self.panels.run(x, before=before, scale=scale, residual=residual)[0]


# --- memory ----------------------------------------------------------------------------------------------------------


def address(tensor: Tensor | None) -> int | None:
    """The address of the data; None (NULL) for None."""
    return None if tensor is None else tensor.data_ptr()


def steps_per_tile(steps: int) -> int:
    """Steps (4 bytes of the input) per AMX tile: the largest divisor of `steps` from 8 to 16; 0 if there is none.

    A divisor fills all tiles of a position completely.
    """
    return next((held for held in range(16, 7, -1) if steps % held == 0), 0)


def packed(matrix: Tensor, panel: int) -> Tensor:
    """Pack a weight [n, K] into panels of `panel` outputs, flattened. The last panel has half as many if these suffice.

    Layout of a panel: [K in steps of 4 bytes][output][step]. A weight with one output is only copied.
    """
    n, inputs = matrix.shape
    if n == 1:
        return matrix.flatten().clone()
    step, half = 4 // matrix.element_size(), panel // 2
    padded = matrix.new_zeros(-(-n // half) * half, inputs // step, step)
    padded[:n] = matrix.reshape(n, -1, step)
    whole = padded.shape[0] // panel * panel
    flat = matrix.new_empty(padded.numel())
    panels, rest = flat[: whole * inputs], flat[whole * inputs :]
    panels.view(-1, inputs // step, panel, step).copy_(
        padded[:whole].view(-1, panel, inputs // step, step).transpose(1, 2)
    )
    if rest.numel():
        rest.view(inputs // step, half, step).copy_(padded[whole:].transpose(0, 1))
    return flat
