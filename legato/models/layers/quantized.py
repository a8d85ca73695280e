"""Linear maps with 8- or 4-bit weights: how they are stored, and the modules that compute with them.

A store holds numbers and scales as they are in a file; `ready` makes of it what runs, once, at load. Every row of an
input is rounded with a scale of its own, so a row's result is the same in any batch. Owns weights alone; knows no
checkpoint, and does not decide which map is stored how.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import torch
from torch import Tensor, nn

GROUP = 32
"""Consecutive inputs that share a scale and a zero in 4-bit weights."""
OUTPUTS = 16
"""4-bit weights come in blocks of so many outputs."""
TINY = 1e-30
"""Added to a row's largest value, so that a row of zeros is divided by something. It changes no other row."""


@dataclass(frozen=True, slots=True)
class Kernels:
    """What this CPU multiplies fast: 8-bit weights at all, exactly with 8-bit inputs (VNNI), 4-bit weights."""

    int8: bool
    vnni: bool
    int4: bool

    @staticmethod
    def here() -> Kernels:
        """As torch sees the machine. Its 8-bit products are made for x86, its 4-bit ones for AVX2 and above."""
        vector = torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512")
        int8 = vector and "x86" in torch.backends.quantized.supported_engines
        return Kernels(int8=int8, vnni=int8 and bool(torch.cpu._is_vnni_supported()), int4=vector)


class Int8Store(nn.Module):
    """`values` int8 [N, K] times `scales` float32 [N]; `bias` float32 [N] or none."""

    def __init__(self, inputs: int, outputs: int, *, bias: bool) -> None:
        super().__init__()
        self.in_features, self.out_features = inputs, outputs
        self.values = nn.Parameter(torch.empty(outputs, inputs, dtype=torch.int8), requires_grad=False)
        self.scales = nn.Parameter(torch.empty(outputs), requires_grad=False)
        self.bias = nn.Parameter(torch.empty(outputs), requires_grad=False) if bias else None

    def dense(self) -> Tensor:
        """The weights that the numbers stand for, float32 [N, K]."""
        return self.values.float() * self.scales[:, None]


class Int4Store(nn.Module):
    """`values` uint8 [N, K / 2]: two numbers 0 .. 15 each, the first in the low half.

    Number q of group g of output n stands for `(q - 8) * affine[n, g, 0] + affine[n, g, 1]`; `affine` is bfloat16.
    """

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.in_features, self.out_features = inputs, outputs
        self.values = nn.Parameter(torch.empty(outputs, inputs // 2, dtype=torch.uint8), requires_grad=False)
        self.affine = nn.Parameter(torch.empty(outputs, inputs // GROUP, 2, dtype=torch.bfloat16), requires_grad=False)

    def numbers(self) -> Tensor:
        """0 .. 15, int32 [N, K]."""
        return torch.stack((self.values & 15, self.values >> 4), dim=-1).flatten(1).int()

    def dense(self) -> Tensor:
        """The weights that the numbers stand for, float32 [N, K]."""
        steps = (self.numbers() - 8).view(self.out_features, -1, GROUP).float()
        return (steps * self.affine[..., :1].float() + self.affine[..., 1:].float()).flatten(1)


Store = Int8Store | Int4Store


def fits_int4(inputs: int, outputs: int) -> bool:
    """Whether a map of this shape can have 4-bit weights."""
    return inputs % GROUP == 0 and outputs % OUTPUTS == 0


def to_int8(weight: Tensor, bias: Tensor | None) -> Int8Store:
    """Round `weight` [N, K] to 8 bits: each output's largest weight becomes 127."""
    wide = weight.float()
    store = Int8Store(weight.shape[1], weight.shape[0], bias=bias is not None)
    scales = wide.abs().amax(1).clamp(min=TINY) / 127
    store.scales.copy_(scales)
    store.values.copy_((wide / scales[:, None]).round())
    if store.bias is not None and bias is not None:
        store.bias.copy_(bias)
    return store


def to_int4(weight: Tensor) -> Int4Store:
    """Round `weight` [N, K] to 4 bits: each group's smallest and largest weight become 0 and 15."""
    N, K = weight.shape
    groups = weight.float().view(N, K // GROUP, GROUP)
    low, high = groups.amin(-1), groups.amax(-1)
    scale = ((high - low) / 15).clamp(min=TINY).bfloat16()
    middle = (low + 8 * scale.float()).bfloat16()
    store = Int4Store(K, N)
    store.affine.copy_(torch.stack((scale, middle), dim=-1))
    numbers = ((groups - middle.float()[..., None]) / scale.float()[..., None]).round().add(8).clamp(0, 15)
    pairs = numbers.to(torch.uint8).view(N, K // 2, 2)
    store.values.copy_(pairs[..., 0] | pairs[..., 1] << 4)
    return store


def ready(store: Store, kernels: Kernels, dtype: torch.dtype) -> nn.Module:
    """What runs: the fast form where this machine has it, else an ordinary linear map of the same weights."""
    if isinstance(store, Int8Store) and kernels.int8:
        return Int8Linear(store, levels=127 if kernels.vnni else 63)
    if isinstance(store, Int4Store) and kernels.int4:
        return Int4Linear(store)
    return plain_linear(store.dense(), getattr(store, "bias", None), dtype)


def plain_linear(weight: Tensor, bias: Tensor | None, dtype: torch.dtype) -> nn.Linear:
    """An ordinary linear map without gradients."""
    with torch.device("meta"):
        linear = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None)
    linear.weight = nn.Parameter(weight.to(dtype), requires_grad=False)
    if bias is not None:
        linear.bias = nn.Parameter(bias.to(dtype), requires_grad=False)
    return linear


class Int8Linear(nn.Module):
    """8-bit weights times inputs rounded to 8 bits: sums of whole numbers, so their order changes nothing.

    Each row of the input is divided by its own largest magnitude and rounded to -levels .. levels. 127 levels need
    VNNI; without it 16-bit sums would overflow, and 63 are used.
    """

    def __init__(self, store: Int8Store, *, levels: int) -> None:
        super().__init__()
        self.in_features, self.out_features = store.in_features, store.out_features
        self.levels = levels
        self.bias: Tensor | None
        self.register_buffer("bias", store.bias.detach() if store.bias is not None else None, persistent=False)
        self._packed = _packed_int8(store)

    @property
    def weight_bytes(self) -> int:
        """Bytes that a product reads: the packed numbers and a scale an output."""
        return self.out_features * (self.in_features + 4)

    def forward(self, x: Tensor) -> Tensor:
        """`x` [..., K] -> [..., N], computed in float32."""
        wide = x.float()
        peak = wide.abs().amax(-1, keepdim=True) + TINY
        y: Tensor = torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32.default(
            wide / peak, 1 / self.levels, self.levels + 1, self._packed
        )
        y = y.mul_(peak)
        return (y if self.bias is None else y + self.bias).to(x.dtype)


def _packed_int8(store: Int8Store) -> torch.ScriptObject:
    scales, zeros = store.scales.double(), torch.zeros(store.out_features, dtype=torch.int64)
    # torch announces that it will drop quantised tensors; the kernel has no other way in yet.
    with warnings.catch_warnings(record=True):
        warnings.resetwarnings()
        values = torch._make_per_channel_quantized_tensor(store.values.contiguous(), scales, zeros, 0)
        packed: torch.ScriptObject = torch.ops.quantized.linear_prepack(values, None)
    return packed


class Int4Linear(nn.Module):
    """4-bit weights times bfloat16 inputs, summed in float32."""

    def __init__(self, store: Int4Store) -> None:
        super().__init__()
        self.in_features, self.out_features = store.in_features, store.out_features
        packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(store.numbers(), 1)
        self.register_buffer("packed", packed, persistent=False)
        self.register_buffer("affine", store.affine.transpose(0, 1).contiguous(), persistent=False)

    @property
    def weight_bytes(self) -> int:
        """Bytes that a product reads: half a byte a weight, four bytes a group."""
        return self.out_features * self.in_features // 2 + self.out_features * self.in_features // GROUP * 4

    def forward(self, x: Tensor) -> Tensor:
        """`x` [..., K] -> [..., N] in the dtype of `x`."""
        rows = x.reshape(-1, self.in_features).to(torch.bfloat16)
        y: Tensor = torch.ops.aten._weight_int4pack_mm_for_cpu.default(rows, self.packed, GROUP, self.affine)
        return y.view(*x.shape[:-1], self.out_features).to(x.dtype)


def dense_weight(linear: nn.Module) -> Tensor:
    """The weights that a map in its running form multiplies with, [N, K], found by asking it for unit inputs.

    The 4-bit form answers in bfloat16, so its weights are known to 8 binary digits.
    """
    if isinstance(linear, nn.Linear):
        return linear.weight.detach().float()
    inputs = int(linear.in_features)  # type: ignore[arg-type]
    answer: Tensor = linear(torch.eye(inputs))
    bias = getattr(linear, "bias", None)
    return (answer if bias is None else answer - bias).T.contiguous()
