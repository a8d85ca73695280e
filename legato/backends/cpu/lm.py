"""Linears and stacks of decoder layers that run in C kernels.

They share the weights of the modules that they are built from. Weights in a mapped file are read in place.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from ctypes import byref, c_void_p
from functools import cached_property
from typing import TypeVar

import torch
from torch import Tensor, nn

from legato.kernels.library import Library
from legato.kernels.structs import BFLOAT16, FLOAT32, INT4, INT8, MAX_INT8_INPUTS, Cache, Layer, Linear, Room, Stack
from legato.kernels.threads import num_threads
from legato.models.layers.decoder_layer import DecoderLayer, GroupedAttention, KVLocations, KVView, Layers, run_layers
from legato.models.layers.mlp import SwiGLU
from legato.models.layers.rope import RopeTables
from legato.weights.module_tree import replace_modules
from legato.weights.quantization import KEPT
from legato.weights.quantized_linear import FusedAttention, FusedSwiGLU, Int4Linear, Int8Linear

_SUMMED_OUTPUTS = 64
"""Output channels that are summed at a time."""
MAX_QUERIES_PER_KEY_HEAD = 64
_Language = TypeVar("_Language", bound=nn.Module)


def native_language(language: _Language, library: Library) -> _Language:
    """A copy of a talker or code predictor with native linears where supported, and native layers if all are native.

    float32 linears are not replaced: the kernels are not faster there. The caller replaces the heads in `KEPT`.
    """

    def replacement(name: str, child: nn.Module) -> nn.Module | None:
        if isinstance(child, Int8Linear | Int4Linear):
            # Sums of more int8 products could overflow.
            too_wide = isinstance(child, Int8Linear) and child.in_features > MAX_INT8_INPUTS
            return None if too_wide else native_linear(child, library)
        if isinstance(child, nn.Linear):
            native = child.weight.dtype == torch.bfloat16 and child.weight.is_contiguous() and name not in KEPT
            return native_linear(child, library) if native else None
        if isinstance(child, Layers) and all_native(child) and has_supported_sizes(child):
            return NativeLayers(child, library)
        return None

    return replace_modules(language, replacement)


class NativeLinearBase(nn.Module):
    """A linear computed in C. `args` describes it to the kernels and is valid while this module is alive."""

    bias: Tensor | None
    args: Linear

    def __init__(self, inputs: int, outputs: int, library: Library) -> None:
        super().__init__()
        self.in_features, self.out_features, self.library = inputs, outputs, library

    @cached_property
    def prepared_bytes(self) -> int:
        """Bytes of one prepared (quantized or packed) input row."""
        return self.library.prepared(byref(self.args), ctypes.c_int64(1))

    def forward(self, x: Tensor) -> Tensor:
        """`x` [..., K] -> [..., N] in the dtype of `x`."""
        rows = x.detach().float().reshape(-1, self.in_features).contiguous()
        y = torch.empty(rows.shape[0], self.out_features)
        ready = prepared_rows(rows.shape[0], self.prepared_bytes, self.library)
        scales = torch.empty(rows.shape[0])
        addresses = [c_void_p(each.data_ptr()) for each in (rows, y, ready, scales)]
        threads = ctypes.c_int64(num_threads())
        self.library.map(byref(self.args), ctypes.c_int64(rows.shape[0]), threads, *addresses)
        y = y.view(*x.shape[:-1], self.out_features)
        return (y if self.bias is None else y + self.bias).to(x.dtype)


class NativeInt8Linear(NativeLinearBase):
    """int8 weights times activations quantized to 15 bits with one scale per row, accumulated exactly."""

    def __init__(self, linear: Int8Linear, library: Library) -> None:
        super().__init__(linear.in_features, linear.out_features, library)
        self.values, self.scales, self.bias = linear.values, linear.scales, linear.bias
        self.sums: Tensor
        self.register_buffer("sums", _channel_sums(linear.values), persistent=False)
        self.args = Linear(
            weight=self.values.data_ptr(),
            scale=self.scales.data_ptr(),
            row_sum=self.sums.data_ptr(),
            out_features=self.out_features,
            in_features=self.in_features,
            dtype=INT8,
            use_amx=int(library.amx),
        )


class NativeInt4Linear(NativeLinearBase):
    """int4 weights with a scale and a zero point per group, times activations quantized to int8 in the same groups."""

    def __init__(self, linear: Int4Linear, library: Library) -> None:
        super().__init__(linear.in_features, linear.out_features, library)
        self.values, self.affine, self.bias = linear.values, linear.affine, None
        self.args = Linear(
            weight=self.values.data_ptr(),
            scale=self.affine.data_ptr(),
            out_features=self.out_features,
            in_features=self.in_features,
            dtype=INT4,
        )


class NativeLinear(NativeLinearBase):
    """bfloat16 or float32 weights times float32 activations, accumulated in float32.

    `weight` [N, K], contiguous. bfloat16 weights give exactly the result of a float32 copy.
    """

    def __init__(self, linear: nn.Linear, library: Library) -> None:
        super().__init__(linear.in_features, linear.out_features, library)
        self.weight, self.bias = linear.weight, linear.bias
        self.args = Linear(
            weight=self.weight.data_ptr(),
            out_features=self.out_features,
            in_features=self.in_features,
            dtype=BFLOAT16 if self.weight.dtype == torch.bfloat16 else FLOAT32,
        )


def native_linear(linear: Int8Linear | Int4Linear | nn.Linear, library: Library) -> NativeLinearBase:
    """The native module for `linear`, with the same weights."""
    if isinstance(linear, Int8Linear):
        return NativeInt8Linear(linear, library)
    if isinstance(linear, Int4Linear):
        return NativeInt4Linear(linear, library)
    return NativeLinear(linear, library)


class NativeLayers(Layers):
    """All decoder layers in one kernel call if the KV view has addresses, else layer by layer."""

    def __init__(self, layers: Layers, library: Library) -> None:
        super().__init__(layers)
        self.library = library
        self._norms = [[norm.detach().float() for norm in _norms(each)] for each in layers]
        described = [_layer(each, norms) for each, norms in zip(layers, self._norms, strict=True)]
        self._layer_args = (Layer * len(layers))(*described)
        attention = _parts(layers[0])[0]
        down = described[0].down
        heads, kv_heads, d = attention.heads, attention.kv_heads, attention.head_dim
        self._qkv_size, self._inner, self._attended_size = (heads + 2 * kv_heads) * d, down.in_features, heads * d
        self._group = heads // kv_heads
        self._prepared_row = max(
            library.prepared(byref(each), ctypes.c_int64(1)) for layer in described for each in _linears(layer)
        )
        self.stack = Stack(
            layers=self._layer_args,
            count=len(layers),
            width=down.out_features,
            inner=down.in_features,
            heads=heads,
            kv_heads=kv_heads,
            head_dim=d,
            eps=attention.q_norm.eps,
        )

    def run(self, x: Tensor, *, rope: RopeTables, kv: KVView) -> Tensor:
        """Run `x` [B, T, D] through all layers, in float32 internally."""
        locations = kv.locations()
        if locations is None or x.dtype == torch.float64:
            return run_layers(self, x, rope=rope, kv=kv)
        B, T, D = x.shape
        used, wide = locations.used, x.float()
        rows = wide.reshape(B * T, D).clone() if used is None else wide.reshape(B * T, D)[used]
        cos, sin = (part.expand(B, 1, T, -1).reshape(B * T, -1) for part in rope)
        if used is not None:
            cos, sin = cos[used], sin[used]
        self._call(locations, rows, cos.contiguous(), sin.contiguous())
        if used is None:
            return rows.view(B, T, D).to(x.dtype)
        y = torch.zeros(B * T, D)
        y[used] = rows
        return y.view(B, T, D).to(x.dtype)

    def _call(self, locations: KVLocations, rows: Tensor, cos: Tensor, sin: Tensor) -> None:
        threads, cache = num_threads(), cache_args(locations)
        workspace, tensors = self.workspace(rows.shape[0], locations.span, threads)
        numbers = (ctypes.c_int64(number) for number in (rows.shape[0], threads))
        addresses = (c_void_p(each.data_ptr()) for each in (rows, cos, sin))
        self.library.layers(byref(self.stack), byref(cache), byref(workspace), *numbers, *addresses)
        del tensors  # the workspace points into them

    def workspace(self, count: int, span: int, threads: int) -> tuple[Room, list[Tensor]]:
        """Scratch memory for `count` rows that attend to `span` positions, and the tensors that it points into."""
        width = self.stack.width
        score_row = max(self._group * span, self._inner)
        parts = {
            "wide": torch.empty(count * max(self._qkv_size, 2 * self._inner)),
            "mixed": torch.empty(count * self._attended_size),
            "narrow": torch.empty(count * width),
            "normed": torch.empty(count * width),
            "scales": torch.empty(count),
            "scores": torch.empty(threads * score_row),
            "ready": prepared_rows(count, self._prepared_row, self.library),
        }
        workspace = Room(**{name: part.data_ptr() for name, part in parts.items()}, score_row=score_row)
        return workspace, list(parts.values())


def prepared_rows(count: int, row_bytes: int, library: Library) -> Tensor:
    """Memory for `count` prepared input rows and, for AMX, their interleaved copy in groups of 16 rows."""
    interleaved = -(-count // 16) * 16 if library.amx and count > 1 else 0
    return torch.empty((count + interleaved) * row_bytes, dtype=torch.uint8)


def cache_args(locations: KVLocations) -> Cache:
    """`locations` as a kernel argument, valid while its tensors are alive."""
    keys, values = locations.keys, locations.values
    layer, slot, head, position, _ = keys.stride()
    return Cache(
        keys=keys.data_ptr(),
        values=values.data_ptr(),
        layer=layer,
        slot=slot,
        head=head,
        position=position,
        slots=locations.slots.data_ptr(),
        positions=locations.positions.data_ptr(),
        half=int(keys.dtype == torch.bfloat16),
    )


def has_supported_sizes(layers: Layers) -> bool:
    """Whether the fixed buffers of `layers.c` are large enough for the queries that share a key head."""
    attention = _parts(layers[0])[0]
    return attention.heads // attention.kv_heads <= MAX_QUERIES_PER_KEY_HEAD


def all_native(layers: Layers) -> bool:
    """Whether every linear of the layers is native."""
    return all(
        isinstance(part, NativeLinearBase)
        for layer in layers
        for part in layer.modules()
        if isinstance(getattr(part, "in_features", None), int)
    )


def _layer(layer: nn.Module, norms: list[Tensor]) -> Layer:
    attention, mlp = _parts(layer)
    if isinstance(attention, FusedAttention):
        qkv = [attention.qkv_proj]
    else:
        qkv = [attention.q_proj, attention.k_proj, attention.v_proj]
    gate_up = [mlp.gate_up_proj] if isinstance(mlp, FusedSwiGLU) else [mlp.gate_proj, mlp.up_proj]
    input_norm, post_norm, q_norm, k_norm = (norm.data_ptr() for norm in norms)
    return Layer(
        qkv=(Linear * 3)(*(_args(each) for each in qkv)),
        out=_args(attention.o_proj),
        gate_up=(Linear * 2)(*(_args(each) for each in gate_up)),
        down=_args(mlp.down_proj),
        input_norm=input_norm,
        post_norm=post_norm,
        q_norm=q_norm,
        k_norm=k_norm,
    )


def _norms(layer: nn.Module) -> tuple[Tensor, ...]:
    """Norm weights of a layer: input, post-attention, query, key."""
    assert isinstance(layer, DecoderLayer)
    attention = layer.self_attn
    norms = (layer.input_layernorm, layer.post_attention_layernorm, attention.q_norm, attention.k_norm)
    return tuple(norm.weight for norm in norms)


def _parts(layer: nn.Module) -> tuple[GroupedAttention, SwiGLU]:
    assert isinstance(layer, DecoderLayer)
    return layer.self_attn, layer.mlp


def _linears(layer: Layer) -> Iterator[Linear]:
    yield from (*layer.qkv, layer.out, *layer.gate_up, layer.down)


def _args(module: nn.Module) -> Linear:
    assert isinstance(module, NativeLinearBase)
    return module.args


def _channel_sums(values: Tensor) -> Tensor:
    """The sum of each output channel's weights, int32 [N].

    Computed for a few channels at a time: PyTorch converts its input to int32 first, and large temporary tensors would
    fragment the heap (0.9 GB for the 0.6B model).
    """
    return torch.cat([part.sum(1, dtype=torch.int32) for part in torch.split(values, _SUMMED_OUTPUTS)])
