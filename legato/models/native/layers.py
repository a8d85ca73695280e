"""Linear maps and stacks of layers that compute in C, in the place of their Python forms.

Own their weights, which stay where they are: a mapped file is multiplied from as it lies. Know neither sequence nor
frame: where keys and values go is told by the caller's `KeyValues`.
"""

from __future__ import annotations

import ctypes
from collections.abc import Container, Iterator
from ctypes import byref, c_void_p
from functools import cached_property

import torch
from torch import Tensor, nn

from legato.models.layers.decoder_layer import (
    Cells,
    DecoderLayer,
    GroupedAttention,
    JoinedAttention,
    KeyValues,
    Layers,
    run_layers,
)
from legato.models.layers.mlp import JoinedSwiGLU, SwiGLU
from legato.models.layers.quantized import Int4Store, Int8Store
from legato.models.layers.rope import Rotation
from legato.models.native.library import BYTES, FLOATS, FOURS, HALVES, Cache, Layer, Library, Map, Room, Stack

_SUMMED_OUTPUTS = 64


class NativeMap(nn.Module):
    """A linear map that is multiplied in C. `described` is it for `maps.h`, good while this module lives."""

    bias: Tensor | None
    described: Map

    def __init__(self, inputs: int, outputs: int, library: Library) -> None:
        super().__init__()
        self.in_features, self.out_features, self.library = inputs, outputs, library

    @cached_property
    def prepared_bytes(self) -> int:
        """What a row of the input takes when it is ready to be multiplied."""
        return self.library.prepared(byref(self.described))

    def forward(self, x: Tensor) -> Tensor:
        """`x` [..., K] -> [..., N] in the dtype of `x`."""
        rows = x.detach().float().reshape(-1, self.in_features).contiguous()
        y = torch.empty(rows.shape[0], self.out_features)
        ready = torch.empty(rows.shape[0] * self.prepared_bytes, dtype=torch.uint8)
        scales = torch.empty(rows.shape[0])
        addresses = [c_void_p(each.data_ptr()) for each in (rows, y, ready, scales)]
        threads = ctypes.c_int64(torch.get_num_threads())
        self.library.map(byref(self.described), ctypes.c_int64(rows.shape[0]), threads, *addresses)
        y = y.view(*x.shape[:-1], self.out_features)
        return (y if self.bias is None else y + self.bias).to(x.dtype)


class NativeLinear(NativeMap):
    """8-bit weights times inputs rounded to 8 bits, each row with its own scale; as `Int8Linear`."""

    def __init__(self, store: Int8Store, library: Library) -> None:
        super().__init__(store.in_features, store.out_features, library)
        self.values, self.scales, self.bias = store.values, store.scales, store.bias
        self.sums: Tensor
        self.register_buffer("sums", _sums(store.values), persistent=False)
        addresses = (self.values.data_ptr(), self.scales.data_ptr(), self.sums.data_ptr())
        self.described = Map(*addresses, self.out_features, self.in_features, BYTES, int(library.tiles))


class NativeFours(NativeMap):
    """4-bit weights, a step and a middle of each group, times inputs rounded to 8 bits, each row with its own scale."""

    def __init__(self, store: Int4Store, library: Library) -> None:
        super().__init__(store.in_features, store.out_features, library)
        self.values, self.affine, self.bias = store.values, store.affine, None
        addresses = (self.values.data_ptr(), self.affine.data_ptr(), None)
        self.described = Map(*addresses, self.out_features, self.in_features, FOURS)


def compiled_map(store: Int8Store | Int4Store, library: Library) -> NativeMap:
    """Rounded weights as what multiplies them in C."""
    return NativeLinear(store, library) if isinstance(store, Int8Store) else NativeFours(store, library)


class UnroundedLinear(NativeMap):
    """bfloat16 or float32 weights times float32 inputs, summed in float32: of both what a float32 copy would give.

    `weight` [N, K], contiguous. A checkpoint that is stored in bfloat16 is computed from as its file lies.
    """

    def __init__(self, linear: nn.Linear, library: Library) -> None:
        super().__init__(linear.in_features, linear.out_features, library)
        self.weight, self.bias = linear.weight, linear.bias
        kind = HALVES if self.weight.dtype == torch.bfloat16 else FLOATS
        self.described = Map(self.weight.data_ptr(), None, None, self.out_features, self.in_features, kind)


class NativeLayers(Layers):
    """All layers of a step in one call, where keys and values have places; else one after another."""

    def __init__(self, layers: Layers, library: Library) -> None:
        super().__init__(layers)
        self.library = library
        self._norms = [[norm.detach().float() for norm in _norms(each)] for each in layers]
        self._described = (Layer * len(layers))(
            *(_layer(each, norms) for each, norms in zip(layers, self._norms, strict=True))
        )
        attention = _parts(layers[0])[0]
        down = self._described[0].down
        heads, kv_heads, d = attention.heads, attention.kv_heads, attention.head_dim
        self._joint, self._inner, self._mixed = (heads + 2 * kv_heads) * d, down.k, heads * d
        self._group = heads // kv_heads
        self._ready_row = max(library.prepared(byref(each)) for layer in self._described for each in _maps(layer))
        self.stack = Stack(self._described, len(layers), down.n, down.k, heads, kv_heads, d, attention.q_norm.eps)

    def run(self, x: Tensor, *, by: Rotation, kv: KeyValues) -> Tensor:
        """`x` [B, T, D] through all layers, in float32 within."""
        cells = kv.cells()
        if cells is None or x.dtype == torch.float64:
            return run_layers(self, x, by=by, kv=kv)
        B, T, D = x.shape
        used, wide = cells.used, x.float()
        rows = wide.reshape(B * T, D).clone() if used is None else wide.reshape(B * T, D)[used]
        cos, sin = (part.expand(B, 1, T, -1).reshape(B * T, -1) for part in by)
        if used is not None:
            cos, sin = cos[used], sin[used]
        self._call(cells, rows, cos.contiguous(), sin.contiguous())
        if used is None:
            return rows.view(B, T, D).to(x.dtype)
        y = torch.zeros(B * T, D)
        y[used] = rows
        return y.view(B, T, D).to(x.dtype)

    def _call(self, cells: Cells, rows: Tensor, cos: Tensor, sin: Tensor) -> None:
        room, score_row, kept = self.room(rows.shape[0], cells.span)
        cache = places(cells)
        numbers = (ctypes.c_int64(number) for number in (rows.shape[0], score_row, torch.get_num_threads()))
        addresses = (c_void_p(each.data_ptr()) for each in (rows, cos, sin))
        self.library.layers(byref(self.stack), byref(cache), byref(room), *numbers, *addresses)
        del kept

    def room(self, count: int, span: int) -> tuple[Room, int, list[Tensor]]:
        """Scratch for `count` rows that look at `span` positions, the numbers of a row of scores, and what owns it."""
        threads, width = torch.get_num_threads(), self.stack.width
        score_row = max(self._group * span, self._inner)
        shared = (count * max(self._joint, 2 * self._inner), count * self._mixed, count * width)
        own = (count * width, count * width, count, score_row)
        parts = [torch.empty(size) for size in (*shared, *(threads * size for size in own))]
        parts.append(torch.empty(threads * count * self._ready_row, dtype=torch.uint8))
        return Room(*(part.data_ptr() for part in parts), self._ready_row), score_row, parts


def take_halves(module: nn.Module, library: Library, kept: Container[str]) -> None:
    """Replace the maps below `module` whose weights are bfloat16, but those whose name is in `kept`."""
    for name, child in list(module.named_children()):
        if not isinstance(child, nn.Linear):
            take_halves(child, library, kept)
        elif child.weight.dtype == torch.bfloat16 and child.weight.is_contiguous() and name not in kept:
            setattr(module, name, UnroundedLinear(child, library))


def join_steps(module: nn.Module, library: Library) -> None:
    """Replace every stack below `module` whose maps are all multiplied in C."""
    for parent in list(module.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, Layers) and all_native(child):
                setattr(parent, name, NativeLayers(child, library))


def places(cells: Cells) -> Cache:
    """The same by address, good while the tensors of `cells` live."""
    layer, slot, head, position, _ = cells.keys.stride()
    return Cache(
        *(cells.keys.data_ptr(), cells.values.data_ptr(), layer, slot, head, position),
        *(cells.slots.data_ptr(), cells.positions.data_ptr(), int(cells.keys.dtype == torch.bfloat16)),
    )


def all_native(layers: Layers) -> bool:
    """Whether every map of the layers is multiplied in C."""
    return all(
        isinstance(part, NativeMap)
        for layer in layers
        for part in layer.modules()
        if isinstance(getattr(part, "in_features", None), int)
    )


def _layer(layer: nn.Module, norms: list[Tensor]) -> Layer:
    attention, mlp = _parts(layer)
    qkv: list[nn.Module]
    if isinstance(attention, JoinedAttention):
        qkv = [attention.qkv_proj]
    else:
        qkv = [attention.q_proj, attention.k_proj, attention.v_proj]
    both = [mlp.gate_up_proj] if isinstance(mlp, JoinedSwiGLU) else [mlp.gate_proj, mlp.up_proj]
    return Layer(
        (Map * 3)(*(_map(each) for each in qkv)),
        _map(attention.o_proj),
        (Map * 2)(*(_map(each) for each in both)),
        _map(mlp.down_proj),
        *(norm.data_ptr() for norm in norms),
    )


def _norms(layer: nn.Module) -> tuple[Tensor, ...]:
    assert isinstance(layer, DecoderLayer)
    attention = layer.self_attn
    norms = (layer.input_layernorm, layer.post_attention_layernorm, attention.q_norm, attention.k_norm)
    return tuple(norm.weight for norm in norms)


def _parts(layer: nn.Module) -> tuple[GroupedAttention, SwiGLU]:
    assert isinstance(layer, DecoderLayer)
    return layer.self_attn, layer.mlp


def _maps(layer: Layer) -> Iterator[Map]:
    yield from (*layer.qkv, layer.out, *layer.gate_up, layer.down)


def _map(module: nn.Module) -> Map:
    assert isinstance(module, NativeMap)
    return module.described


def _sums(values: Tensor) -> Tensor:
    """The sum of each output's weights, int32 [N]. Of a few outputs at a time: torch widens what it adds up, and such
    large and passing tensors leave holes that the process keeps (0.9 GB of the 0.6B model)."""
    return torch.cat([part.sum(1, dtype=torch.int32) for part in torch.split(values, _SUMMED_OUTPUTS)])
