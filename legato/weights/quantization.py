"""Choose a quantization mode, and quantize the linear layers of talker and code predictor.

Linears with the same input become one: queries, keys and values; gate and up. The talker's head, the norms and the
embeddings keep their format: they are small, or only looked up. The mode depends on the machine and on the request at
load, never on batch composition.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import nn

from legato.config.model import TransformerConfig
from legato.config.quantization import AUTO, CHOICES, INT4, INT8, NONE
from legato.errors import UnsupportedError
from legato.models.layers.decoder_layer import GroupedAttention
from legato.models.layers.mlp import SwiGLU
from legato.models.layers.norm import RMSNorm
from legato.weights.equalization import Equalization, equalization
from legato.weights.module_tree import replace_modules, shallow_copy
from legato.weights.quantized_linear import (
    FusedAttention,
    FusedSwiGLU,
    Int4Linear,
    Int8Linear,
    QuantizedLinear,
    dense_linear,
    fits_int4,
    to_int4,
    to_int8,
)

KEPT = ("codec_head",)
"""Linears that are never quantized: codebook 0 carries the content, and its head is read only once per frame."""
_Module = TypeVar("_Module", bound=nn.Module)


@dataclass(frozen=True, slots=True)
class QuantChoice:
    """The mode in effect, and a note on the reason; "" if there is none."""

    mode: str
    note: str


LARGE_PARAMETERS = 300_000_000
"""Checkpoints with more parameters than this in the talker's layers are quantized by default: 0.6B and 1.7B."""


def is_large(stack: TransformerConfig) -> bool:
    """Whether a talker with these layers is slower than playback on small machines, unless it is quantized."""
    heads = 2 * stack.num_attention_heads + 2 * stack.num_key_value_heads
    layer = stack.hidden_size * (heads * stack.head_dim + 3 * stack.intermediate_size)
    return stack.num_hidden_layers * layer > LARGE_PARAMETERS


def choose_quantization(
    requested: str | None, stored: str, device: str, *, fast_int8: bool, large: bool = False
) -> QuantChoice:
    """The mode for a checkpoint stored as `stored` ("none" if it is not quantized).

    `requested`: None is the default, which is "auto" for `large` checkpoints on a CPU and "none" for others.
    `fast_int8`: whether this machine multiplies int8 weights faster than bfloat16 ones. Raises `UnsupportedError` for a
    mode that is not available.
    """
    if requested is None:
        if stored == NONE and large and fast_int8 and device.startswith("cpu"):
            return QuantChoice(INT8, "quant int8 (the default for this size on a CPU; --quant none: unquantized)")
        requested = NONE
    if requested not in CHOICES:
        raise UnsupportedError(f"unknown quantization {requested!r}: use {', '.join(CHOICES)}", field="quant")
    if stored != NONE and requested not in (stored, AUTO, NONE):
        raise UnsupportedError(
            f"this checkpoint is stored as {stored} and cannot become {requested}: quantize the original instead",
            field="quant",
        )
    on_cpu = device.startswith("cpu")
    mode = stored if stored != NONE else requested
    if mode == AUTO:
        if not on_cpu:
            return QuantChoice(NONE, f"quant none: quantized weights run on the CPU only, and this is {device}")
        if fast_int8:
            return QuantChoice(INT8, "quant int8 (auto): int8 weights take half the memory bandwidth of bfloat16")
        return QuantChoice(NONE, "quant none (auto): this machine has no fast int8 kernels")
    if mode == NONE:
        return QuantChoice(NONE, "")
    if not on_cpu:
        raise UnsupportedError(f"quant {mode} runs on the CPU only, not on {device}: use none", field="quant")
    return QuantChoice(mode, f"quant {mode} (as stored)" if stored != NONE else f"quant {mode}")


def quantize_modules(module: _Module, mode: str, scales: Equalization | None = None) -> _Module:
    """A copy of `module` with quantized linears; meta linears become meta quantized linears. `module` is unchanged.

    With int4, linears outside the layers, which are read once per frame, get int8. `scales`: the `equalization` of
    `module`, if it was computed before. It changes norms as well.
    """
    equalized = equalization(module) if scales is None else scales

    def fused(linears: Sequence[nn.Module], mode: str) -> QuantizedLinear:
        return _fused([each for each in linears if isinstance(each, nn.Linear)], mode, equalized)

    def quantized(name: str, child: nn.Module) -> nn.Module | None:
        if isinstance(child, GroupedAttention):
            return FusedAttention(
                child, fused((child.q_proj, child.k_proj, child.v_proj), mode), fused((child.o_proj,), mode)
            )
        if isinstance(child, SwiGLU):
            return FusedSwiGLU(fused((child.gate_proj, child.up_proj), mode), fused((child.down_proj,), mode))
        if isinstance(child, nn.Linear) and name not in KEPT and name not in _OF_LAYERS:
            return fused((child,), INT8)
        return equalized.norm(child) if isinstance(child, RMSNorm) else None

    return replace_modules(module, quantized)


_OF_LAYERS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
"""Linears that `quantize_modules` handles with the attention or feed-forward block that holds them."""


def quantized_names(module: nn.Module) -> frozenset[str]:
    """Names of the weights below `module` that `quantize_modules` would quantize."""
    return frozenset(
        f"{name}.weight"
        for name, part in module.named_modules()
        if isinstance(part, nn.Linear) and name.rpartition(".")[2] not in KEPT
    )


def dequantized_copy(module: _Module) -> _Module:
    """A float32 copy with ordinary linears of the same weights: the reference for quantized and low-precision math."""
    if isinstance(module, Int8Linear | Int4Linear):
        raise TypeError("a quantized linear has no copy of its own type; copy the module that holds it")
    shell = shallow_copy(module)
    for name, child in module._modules.items():
        if child is None:
            continue
        if isinstance(child, Int8Linear | Int4Linear):
            shell._modules[name] = dense_linear(child.dense(), child.bias, torch.float32)
        else:
            shell._modules[name] = dequantized_copy(child)
    for name, parameter in module._parameters.items():
        if parameter is not None:
            shell._parameters[name] = nn.Parameter(parameter.detach().float(), requires_grad=False)
    return shell


def _fused(linears: Sequence[nn.Linear], mode: str, scales: Equalization) -> QuantizedLinear:
    """One quantized linear of several with the same input, their outputs one after another."""
    in_features, out_features = linears[0].in_features, sum(each.out_features for each in linears)
    bias, small = linears[0].bias, mode == INT4 and fits_int4(in_features, out_features)
    if linears[0].weight.is_meta:
        if small:
            return Int4Linear(in_features, out_features)
        return Int8Linear(in_features, out_features, bias=bias is not None)
    weight = torch.cat([scales.weight(each) for each in linears])
    return to_int4(weight) if small else to_int8(weight, None if bias is None else bias.detach())
