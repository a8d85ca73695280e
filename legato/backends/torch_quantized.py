"""Quantized linears that use PyTorch's CPU kernels. They are used where the C kernels are not available."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from legato.weights.quantized_linear import GROUP, TINY, Int4Linear, Int8Linear, QuantizedLinear, dense_linear


@dataclass(frozen=True, slots=True)
class TorchKernels:
    """Which quantized PyTorch kernels are fast on this CPU. `vnni`: int8 kernels with VNNI."""

    int8: bool
    vnni: bool
    int4: bool

    @staticmethod
    def detect() -> TorchKernels:
        """Detect the kernels of this CPU. The int8 kernels need x86, the int4 kernels at least AVX2."""
        vector = torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512")
        int8 = vector and "x86" in torch.backends.quantized.supported_engines
        return TorchKernels(int8=int8, vnni=int8 and bool(torch.cpu._is_vnni_supported()), int4=vector)


def torch_linear(linear: QuantizedLinear, kernels: TorchKernels, dtype: torch.dtype) -> nn.Module:
    """A linear that uses a fast kernel for `linear` or, if there is none, a linear of the dequantized weights."""
    if isinstance(linear, Int8Linear) and kernels.int8:
        return TorchInt8Linear(linear, levels=127 if kernels.vnni else 63)
    if isinstance(linear, Int4Linear) and kernels.int4:
        return TorchInt4Linear(linear)
    return dense_linear(linear.dense(), linear.bias, dtype)


class TorchInt8Linear(nn.Module):
    """int8 weights times activations with one scale per row, as the sum of two int8 GEMMs.

    The first GEMM multiplies the activations quantized to the range -levels to levels, the second what this rounding
    left over, quantized to the same range. So rows with outliers keep their precision (docs/quantization.md). `levels`
    is 127 with VNNI. Without VNNI the kernel accumulates in 16 bits, so `levels` is 63 to avoid overflow.
    """

    def __init__(self, linear: Int8Linear, *, levels: int) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.levels = levels
        self.bias: Tensor | None
        self.register_buffer("bias", linear.bias.detach() if linear.bias is not None else None, persistent=False)
        self._packed = _packed_int8(linear)

    @property
    def weight_bytes(self) -> int:
        """Bytes that one call reads: the packed weights, twice, and one scale per output."""
        return 2 * self.out_features * (self.in_features + 4)

    def forward(self, x: Tensor) -> Tensor:
        """`x` [..., K] -> [..., N], computed in float32."""
        wide = x.float()
        peak = wide.abs().amax(-1, keepdim=True) + TINY
        unit = wide / peak
        rest = unit - (unit * self.levels).round() / self.levels  # at most half a level
        y = self._multiply(unit).add_(self._multiply(rest * 2 * self.levels), alpha=0.5 / self.levels).mul_(peak)
        return (y if self.bias is None else y + self.bias).to(x.dtype)

    def _multiply(self, x: Tensor) -> Tensor:
        """The GEMM of `x`, whose magnitudes are at most 1."""
        y: Tensor = torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32.default(
            x, 1 / self.levels, self.levels + 1, self._packed
        )
        return y


def _packed_int8(linear: Int8Linear) -> torch.ScriptObject:
    scales, zeros = linear.scales.double(), torch.zeros(linear.out_features, dtype=torch.int64)
    # torch warns that quantized tensors are deprecated; the kernel has no other entry point yet.
    with warnings.catch_warnings(record=True):
        warnings.resetwarnings()
        values = torch._make_per_channel_quantized_tensor(linear.values.contiguous(), scales, zeros, 0)
        packed: torch.ScriptObject = torch.ops.quantized.linear_prepack(values, None)
    return packed


class TorchInt4Linear(nn.Module):
    """int4 weights times bfloat16 activations, accumulated in float32."""

    def __init__(self, linear: Int4Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(linear.numbers(), 1)
        self.register_buffer("packed", packed, persistent=False)
        self.register_buffer("affine", linear.affine.transpose(0, 1).contiguous(), persistent=False)

    @property
    def weight_bytes(self) -> int:
        """Bytes that one call reads: half a byte per weight, four bytes per group."""
        return self.out_features * self.in_features // 2 + self.out_features * self.in_features // GROUP * 4

    def forward(self, x: Tensor) -> Tensor:
        """`x` [..., K] -> [..., N] in the dtype of `x`."""
        rows = x.reshape(-1, self.in_features).to(torch.bfloat16)
        y: Tensor = torch.ops.aten._weight_int4pack_mm_for_cpu.default(rows, self.packed, GROUP, self.affine)
        return y.view(*x.shape[:-1], self.out_features).to(x.dtype)
