"""Products that compute in `codec.c` with weights packed once, and linear maps made of them.

Own their weights, in the order in which they are read; the ordinary ones are gone. A copy (`copy.deepcopy`) and the
`state_dict` are of the ordinary form; moving what is packed to another dtype or device is refused. Know no stream: an
output has the same bits in any window, in any batch, with any number of threads.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Sequence
from ctypes import byref
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from legato.errors import StateError
from legato.models.layers.conv import Kernel as ConvKernel
from legato.models.native.codec_library import AS_IT_IS, SNAKE, Call, CodecLibrary, Kernel

LINE = 64
MACS_A_THREAD = 2**18
"""Below so many multiply-adds a thread, waiting for another costs more than it does."""


class Packed(nn.Module):
    """What every module with packed weights promises about them."""

    @abstractmethod
    def plain(self) -> nn.Module:
        """The ordinary module of the same weights."""

    def __deepcopy__(self, memo: dict[int, object]) -> nn.Module:
        return self.plain()

    def state_dict(  # type: ignore[override]
        self, *, destination: dict[str, Tensor] | None = None, prefix: str = "", keep_vars: bool = False
    ) -> dict[str, Tensor]:
        """That of the ordinary module."""
        into = OrderedDict() if destination is None else destination
        return self.plain().state_dict(destination=into, prefix=prefix, keep_vars=keep_vars)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> nn.Module:  # noqa: ARG002
        raise StateError(
            f"{type(self).__name__} has its weights packed for this CPU and can be neither moved nor converted; "
            "convert a copy (copy.deepcopy), or load again with LEGATO_NATIVE=0"
        )


@dataclass(frozen=True, slots=True)
class Before:
    """What is done to a product's input first, and its numbers: float32, one a channel."""

    kind: int = AS_IT_IS
    first: Tensor | None = None
    second: Tensor | None = None
    eps: float = 0.0


PLAIN = Before()


class Panels(nn.Module):
    """The weight of a product [n, taps * width] in panels, as `packed` makes them; its bias in float32."""

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
        tile_steps = steps_a_tile(self.width // 2) if half and library.tiles and self.out_features > 1 else 0
        sizes = (self.taps, self.width, dilation, self.out_features, half, tile_steps)
        self.described = Kernel(address(self.panels), address(self.bias), *sizes)

    def by_tap(self) -> Tensor:
        """The weight [n, taps, width], as it was."""
        return unpacked(self.panels, self.out_features, self.in_features, self.library.panel).view(
            -1, self.taps, self.width
        )

    def run(
        self,
        x: Tensor,
        past: Tensor | None = None,
        *,
        lengths: Tensor | None = None,
        before: Before = PLAIN,
        after: Before = PLAIN,
        scale: Tensor | None = None,
        plus: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """`x` [B, N, width] behind `past` [B, keep, width] -> y [B, N, n] = product * scale + plus; the next past.

        `after` is SnakeBeta of the product, or nothing.
        """
        assert after.kind in (AS_IT_IS, SNAKE)
        rows, count, _ = x.shape
        y = x.new_empty(rows, count, self.out_features)
        macs = rows * count * self.in_features * self.out_features
        call, kept, _alive = prepared(x, past, self.dtype, self.width, lengths, before, macs)
        plus = None if plus is None else plus.contiguous()
        call.turn, call.gain = address(after.first), address(after.second)
        call.scale, call.plus, call.y = address(scale), address(plus), address(y)
        self.library.convolve(byref(self.described), byref(call))
        return y, kept


def prepared(
    x: Tensor,
    past: Tensor | None,
    dtype: torch.dtype,
    width: int,
    lengths: Tensor | None,
    before: Before,
    macs: int,
) -> tuple[Call, Tensor | None, tuple[Tensor | None, ...]]:
    """The call as far as its input goes, the place of the next past, and what must live until it was made."""
    if x.dtype != dtype or (past is not None and past.dtype != dtype):
        raise StateError(f"weights packed in {dtype} take {dtype}, not {x.dtype}")
    rows, count, _ = x.shape
    keep = 0 if past is None else past.shape[1]
    x, past = x.contiguous(), None if past is None else past.contiguous()
    lengths = None if lengths is None else lengths.contiguous()
    # An odd number of cache lines from position to position: those that are read together lie in different sets.
    pitch = (-(-width * x.element_size() // LINE) | 1) * LINE
    read_in_place = keep == 0 and before.kind == AS_IT_IS
    joined = None if read_in_place else torch.empty(rows * (keep + count) * pitch, dtype=torch.uint8)
    kept = None if past is None else torch.empty_like(past)
    threads = max(1, min(torch.get_num_threads(), macs // MACS_A_THREAD))
    call = Call(
        *(address(each) for each in (x, past, joined, kept, lengths, before.first, before.second)),
        *(None, None, None, None, None, rows, count, keep, pitch, before.kind, threads, before.eps),
    )
    return call, kept, (x, past, joined, lengths)


class PackedLinear(Packed):
    """Linear maps of one input as one product, one after another."""

    def __init__(self, maps: Sequence[nn.Linear], library: CodecLibrary) -> None:
        super().__init__()
        weight = torch.cat([each.weight.detach() for each in maps])
        bias = None if maps[0].bias is None else torch.cat([each.bias.detach() for each in maps])
        self.sizes = [each.out_features for each in maps]
        self.panels = Panels(weight[:, None], bias, library)

    def forward(self, x: Tensor) -> Tensor:
        """`x` [B, N, inputs] -> [B, N, outputs]."""
        return self.run(x)

    def run(
        self, x: Tensor, *, before: Before = PLAIN, scale: Tensor | None = None, plus: Tensor | None = None
    ) -> Tensor:
        """The same of `x` after `before`; times `scale`, plus `plus`."""
        return self.panels.run(x, before=before, scale=scale, plus=plus)[0]

    def parts(self) -> list[nn.Linear]:
        """The ordinary maps."""
        weights, bias = torch.split(self.panels.by_tap()[:, 0], self.sizes), self.panels.bias
        biases = [None] * len(weights) if bias is None else list(torch.split(bias, self.sizes))
        return [_linear(weight, bias) for weight, bias in zip(weights, biases, strict=True)]

    def plain(self) -> nn.Linear:
        """The ordinary module of the same weights, if it is one map."""
        (linear,) = self.parts()
        return linear


def _linear(weight: Tensor, bias: Tensor | None) -> nn.Linear:
    with torch.device("meta"):
        linear = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None)
    linear.weight = parameter(weight.clone())
    if bias is not None:
        linear.bias = parameter(bias.to(weight.dtype))
    return linear.eval()


def fill(kernel: ConvKernel, by_time: Tensor, bias: Tensor | None) -> None:
    """Give an ordinary kernel its weight [A, time, B], and the first of these biases."""
    kernel.weight = parameter(by_time.contiguous().transpose(1, 2))
    if kernel.bias is not None:
        assert bias is not None
        kernel.bias = parameter(bias[: kernel.bias.shape[0]].to(by_time.dtype))


def parameter(tensor: Tensor) -> nn.Parameter:
    """A weight that is not trained."""
    return nn.Parameter(tensor.detach(), requires_grad=False)


# --- memory ----------------------------------------------------------------------------------------------------------


def address(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


def steps_a_tile(steps: int) -> int:
    """How many of a position's steps a matrix tile holds, so that all its tiles are full; 0: too few are."""
    return next((held for held in range(16, 7, -1) if steps % held == 0), 0)


def packed(matrix: Tensor, panel: int) -> Tensor:
    """[n, K] -> flat: panels of so many outputs, the last of half where it has no more; a single output as it is.

    In a panel [K in steps of 4 bytes][output][step].
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


def unpacked(flat: Tensor, n: int, inputs: int, panel: int) -> Tensor:
    """What was packed, [n, K]."""
    if n == 1:
        return flat.view(1, inputs)
    step, outputs = 4 // flat.element_size(), flat.numel() // inputs
    whole = outputs // panel * panel
    panels, rest = flat[: whole * inputs], flat[whole * inputs :]
    matrix = flat.new_empty(outputs, inputs // step, step)
    matrix[:whole] = panels.view(-1, inputs // step, panel, step).transpose(1, 2).flatten(0, 1)
    if rest.numel():
        matrix[whole:] = rest.view(inputs // step, panel // 2, step).transpose(0, 1)
    return matrix.flatten(1)[:n]
