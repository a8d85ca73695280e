"""Which maps of talker and code predictor are rounded to 8 or 4 bits, and the choice of doing so at load.

Maps of one input become one: queries, keys and values; gate and up. The talker's head, norms and embeddings keep their
format: they are small or only looked up. Owns nothing; knows no file. The choice depends on the machine and on what
was asked, never on who joins a batch.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import nn

from legato.config.quantization import AUTO, CHOICES, INT4, INT8, NONE
from legato.errors import UnsupportedError
from legato.models.layers.decoder_layer import GroupedAttention, JoinedAttention, Layers
from legato.models.layers.mlp import JoinedSwiGLU, SwiGLU
from legato.models.layers.quantized import (
    Int4Linear,
    Int4Store,
    Int8Linear,
    Int8Store,
    Kernels,
    Store,
    dense_weight,
    fits_int4,
    plain_linear,
    ready,
    to_int4,
    to_int8,
)
from legato.models.native.layers import (
    NativeFours,
    NativeLayers,
    NativeLinear,
    UnroundedLinear,
    compiled_map,
    join_steps,
)
from legato.models.native.library import Library, Missing, compiled_words

KEPT = ("codec_head",)
"""Maps that are never rounded: the first code decides what is said, and its head is read once a frame."""
_Module = TypeVar("_Module", bound=nn.Module)


@dataclass(frozen=True, slots=True)
class Choice:
    """The mode in force, and a sentence on what it is and why."""

    mode: str
    note: str


def choose(asked: str, stored: str, device: str, kernels: Kernels, *, compiled: bool) -> Choice:
    """The mode for a checkpoint stored as `stored`; `compiled`: whether products can be compiled for this machine.

    Raises `UnsupportedError` for what cannot be had.
    """
    if asked not in CHOICES:
        raise UnsupportedError(f"quant must be one of {', '.join(CHOICES)}, not {asked!r}", field="quant")
    if stored != NONE and asked not in (stored, AUTO, NONE):
        raise UnsupportedError(
            f"this checkpoint is stored as {stored} and cannot become {asked}: quantise the original instead",
            field="quant",
        )
    on_cpu = device.startswith("cpu")
    mode = stored if stored != NONE else asked
    if mode == AUTO:
        if not on_cpu:
            return Choice(NONE, f"quant none: rounded weights are multiplied on the CPU alone, and this is {device}")
        if compiled or kernels.int8:
            return Choice(INT8, f"quant int8, chosen because {_int8_reason(kernels, compiled=compiled)}")
        return Choice(NONE, "quant none: without compiled products this machine has no fast 8-bit ones")
    if mode == NONE:
        return Choice(NONE, "")
    if not on_cpu:
        raise UnsupportedError(f"quant {mode} is computed on the CPU alone, not on {device}; use none", field="quant")
    how = "" if compiled else _how(mode, kernels)
    return Choice(mode, f"quant {mode}{how}{', as the checkpoint is stored' * (stored != NONE)}")


def noted(choice: Choice, native: Library | Missing) -> str:
    """The note, and by what the products are computed."""
    if isinstance(native, Library):
        layers = f"layers {compiled_words(tiles=native.tiles and choice.mode == INT8)}"
        return "; ".join(filter(None, (choice.note, layers)))
    if choice.mode == NONE or not native.reason:
        return choice.note
    return f"{choice.note}; torch's products, slower at one row than compiled ones: {native.reason}"


def _int8_reason(kernels: Kernels, *, compiled: bool) -> str:
    if compiled or kernels.vnni:
        return "8-bit weights are read in half the time of bfloat16 ones"
    return "this CPU has AVX2; without VNNI or compiled products inputs are rounded to 7 bits"


def _how(mode: str, kernels: Kernels) -> str:
    fast = kernels.int8 if mode == INT8 else kernels.int4
    if not fast:
        return ": this machine has no such products, so the rounded weights are multiplied as large and slow as before"
    return "" if mode == INT4 or kernels.vnni else ": without VNNI or compiled products inputs are rounded to 7 bits"


# --- from one form to another ----------------------------------------------------------------------------------------


def stores(module: nn.Module, mode: str) -> None:
    """Replace the maps below `module` by stores of their weights; maps without memory by stores without memory.

    In int4 that is the layers; maps that are read once a frame have 8 bits there too.
    """
    for name, child in list(module.named_children()):
        if isinstance(child, GroupedAttention):
            qkv = _stored((child.q_proj, child.k_proj, child.v_proj), mode)
            setattr(module, name, JoinedAttention(child, qkv, _stored((child.o_proj,), mode)))
        elif isinstance(child, SwiGLU):
            both = _stored((child.gate_proj, child.up_proj), mode)
            setattr(module, name, JoinedSwiGLU(both, _stored((child.down_proj,), mode)))
        elif isinstance(child, nn.Linear) and name not in KEPT:
            setattr(module, name, _stored((child,), INT8))
        else:
            stores(child, mode)


def run_stores(module: nn.Module, kernels: Kernels, dtype: torch.dtype, native: Library | Missing) -> None:
    """Replace every store below `module` by what runs on this machine."""
    for parent in list(module.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, Int8Store | Int4Store):
                running = compiled_map(child, native) if isinstance(native, Library) else ready(child, kernels, dtype)
                setattr(parent, name, running)
    if isinstance(native, Library):
        join_steps(module, native)


def rounded_names(module: nn.Module) -> frozenset[str]:
    """Names of the weights below `module` that `stores` would replace."""
    return frozenset(
        f"{name}.weight"
        for name, part in module.named_modules()
        if isinstance(part, nn.Linear) and name.rpartition(".")[2] not in KEPT
    )


def exact_copy(module: _Module) -> _Module:
    """A copy in float32 with ordinary maps of the same weights: what the rounding of inputs and sums is judged by."""
    shell = copy.copy(module)
    shell._modules = {name: child if child is None else _exact(child) for name, child in module._modules.items()}
    shell._parameters = {
        name: parameter if parameter is None else nn.Parameter(parameter.detach().float(), requires_grad=False)
        for name, parameter in module._parameters.items()
    }
    return shell


def _exact(module: nn.Module) -> nn.Module:
    if isinstance(module, Int8Linear | Int4Linear | NativeLinear | NativeFours):
        return plain_linear(dense_weight(module), getattr(module, "bias", None), torch.float32)
    if isinstance(module, UnroundedLinear):
        return plain_linear(module.weight, module.bias, torch.float32)
    if isinstance(module, NativeLayers):
        return Layers(_exact(layer) for layer in module)
    return exact_copy(module)


def _stored(maps: Sequence[nn.Module], mode: str) -> Store:
    """One store of maps with the same input, one after another."""
    linears = [each for each in maps if isinstance(each, nn.Linear)]
    inputs, outputs = linears[0].in_features, sum(each.out_features for each in linears)
    bias, small = linears[0].bias, mode == INT4 and fits_int4(inputs, outputs)
    if linears[0].weight.is_meta:
        return Int4Store(inputs, outputs) if small else Int8Store(inputs, outputs, bias=bias is not None)
    weight = torch.cat([each.weight.detach() for each in linears])
    return to_int4(weight) if small else to_int8(weight, None if bias is None else bias.detach())
