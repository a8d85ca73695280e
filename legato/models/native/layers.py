"""Linear maps and stacks of layers that compute in `layers.c`, in the place of their Python forms.

Own their weights, which stay where they are: a mapped file is multiplied from as it lies. Know neither sequence nor
frame: where keys and values go is told by the caller's `KeyValues`.
"""

from __future__ import annotations

import ctypes
from ctypes import byref, c_void_p

import torch
from torch import Tensor, nn

from legato.models.layers.decoder_layer import Cells, DecoderLayer, JoinedAttention, KeyValues, Layers, run_layers
from legato.models.layers.mlp import JoinedSwiGLU
from legato.models.layers.quantized import Int8Store
from legato.models.layers.rope import Rotation
from legato.models.native.library import Cache, Layer, Library, Map, Room, Stack

_ALIGNED = 64
_SUMMED_OUTPUTS = 64


class NativeLinear(nn.Module):
    """8-bit weights times inputs rounded to 8 bits, each row with its own scale; as `Int8Linear`.

    `described` is the map for `layers.c`, good while this module lives.
    """

    def __init__(self, store: Int8Store, library: Library) -> None:
        super().__init__()
        self.in_features, self.out_features = store.in_features, store.out_features
        self.values, self.scales, self.bias = store.values, store.scales, store.bias
        self.sums: Tensor
        self.register_buffer("sums", _sums(store.values), persistent=False)
        self.library = library
        addresses = (self.values.data_ptr(), self.scales.data_ptr(), self.sums.data_ptr())
        self.described = Map(*addresses, self.out_features, self.in_features)

    def forward(self, x: Tensor) -> Tensor:
        """`x` [..., K] -> [..., N] in the dtype of `x`."""
        rows = x.detach().float().reshape(-1, self.in_features).contiguous()
        y = torch.empty(rows.shape[0], self.out_features)
        rounded = torch.empty(rows.shape[0] * _padded(self.in_features), dtype=torch.uint8)
        scales = torch.empty(rows.shape[0])
        addresses = [c_void_p(each.data_ptr()) for each in (rows, y, rounded, scales)]
        threads = ctypes.c_int64(torch.get_num_threads())
        self.library.map(byref(self.described), ctypes.c_int64(rows.shape[0]), threads, *addresses)
        y = y.view(*x.shape[:-1], self.out_features)
        return (y if self.bias is None else y + self.bias).to(x.dtype)


class NativeLayers(Layers):
    """All layers of a step in one call, where keys and values have places; else one after another."""

    def __init__(self, layers: Layers, library: Library) -> None:
        super().__init__(layers)
        self.library = library
        self._described = (Layer * len(layers))(*(_layer(each) for each in layers))
        attention, mlp = _parts(layers[0])
        down = _map(mlp.down_proj)
        heads, kv_heads, d = attention.heads, attention.kv_heads, attention.head_dim
        self._joint, self._inner, self._mixed, self._group = (
            (heads + 2 * kv_heads) * d,
            down.k,
            heads * d,
            heads // kv_heads,
        )
        self._stack = Stack(self._described, len(layers), down.n, down.k, heads, kv_heads, d, attention.q_norm.eps)

    def run(self, x: Tensor, *, by: Rotation, kv: KeyValues) -> Tensor:
        """`x` [B, T, D] through all layers."""
        cells = kv.cells()
        if cells is None or x.dtype != torch.float32:
            return run_layers(self, x, by=by, kv=kv)
        B, T, D = x.shape
        used = cells.used
        rows = x.reshape(B * T, D).clone() if used is None else x.reshape(B * T, D)[used]
        cos, sin = (part.expand(B, 1, T, -1).reshape(B * T, -1) for part in by)
        if used is not None:
            cos, sin = cos[used], sin[used]
        self._call(cells, rows, cos.contiguous(), sin.contiguous())
        if used is None:
            return rows.view(B, T, D)
        y = torch.zeros(B * T, D)
        y[used] = rows
        return y.view(B, T, D)

    def _call(self, cells: Cells, rows: Tensor, cos: Tensor, sin: Tensor) -> None:
        count, width, threads = rows.shape[0], rows.shape[1], torch.get_num_threads()
        score_row = max(self._group * cells.span, self._inner)
        shared = (count * max(self._joint, 2 * self._inner), count * self._mixed, count * width)
        own = (count * width, count * width, count, score_row)
        parts = [torch.empty(size) for size in (*shared, *(threads * size for size in own))]
        rounded_row = _padded(max(width, self._mixed, self._inner))
        rounded = torch.empty(threads * count * rounded_row, dtype=torch.uint8)
        room = Room(*(part.data_ptr() for part in (*parts, rounded)), rounded_row)
        layer, slot, head, position, _ = cells.keys.stride()
        cache = Cache(
            *(cells.keys.data_ptr(), cells.values.data_ptr(), layer, slot, head, position),
            *(cells.slots.data_ptr(), cells.positions.data_ptr(), int(cells.keys.dtype == torch.bfloat16)),
        )
        numbers = (ctypes.c_int64(number) for number in (count, score_row, threads))
        addresses = (c_void_p(each.data_ptr()) for each in (rows, cos, sin))
        self.library.layers(byref(self._stack), byref(cache), byref(room), *numbers, *addresses)


def all_native(layers: Layers) -> bool:
    """Whether every map of the layers is a `NativeLinear`."""
    return all(
        isinstance(part, NativeLinear)
        for layer in layers
        for part in layer.modules()
        if isinstance(getattr(part, "in_features", None), int)
    )


def _layer(layer: nn.Module) -> Layer:
    attention, mlp = _parts(layer)
    assert isinstance(layer, DecoderLayer)
    norms = (layer.input_layernorm, layer.post_attention_layernorm, attention.q_norm, attention.k_norm)
    maps = (attention.qkv_proj, attention.o_proj, mlp.gate_up_proj, mlp.down_proj)
    return Layer(*(_map(each) for each in maps), *(norm.weight.data_ptr() for norm in norms))


def _parts(layer: nn.Module) -> tuple[JoinedAttention, JoinedSwiGLU]:
    assert isinstance(layer, DecoderLayer)
    attention, mlp = layer.self_attn, layer.mlp
    assert isinstance(attention, JoinedAttention)
    assert isinstance(mlp, JoinedSwiGLU)
    return attention, mlp


def _map(module: nn.Module) -> Map:
    assert isinstance(module, NativeLinear)
    return module.described


def _sums(values: Tensor) -> Tensor:
    """The sum of each output's weights, int32 [N]. Of a few outputs at a time: torch widens what it adds up, and such
    large and passing tensors leave holes that the process keeps (0.9 GB of the 0.6B model)."""
    return torch.cat([part.sum(1, dtype=torch.int32) for part in values.split(_SUMMED_OUTPUTS)])


def _padded(k: int) -> int:
    return -(-k // _ALIGNED) * _ALIGNED
