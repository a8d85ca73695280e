"""The codec's decoder with all its products packed: `pack_decoder`, and the blocks whose steps it joins.

Own their weights. Same names, same histories and same graph as the ordinary modules; what differs is who computes.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from ctypes import byref

import torch
from torch import Tensor, nn

from legato.models.codec.decoder import CodecDecoder
from legato.models.codec.quantizer import ResidualQuantizer
from legato.models.codec.transformer import FrameTransformer, FrameTransformerLayer
from legato.models.codec.upsample import ConvNeXtBlock, ResidualUnit, SnakeBeta
from legato.models.layers.attention import KeyValues, SlidingWindowAttention, window_mask
from legato.models.layers.conv import (
    CausalConv1d,
    CausalConvTranspose1d,
    CausalDepthwiseConv1d,
    HistoryWalk,
    history_shapes,
)
from legato.models.layers.mlp import SwiGLU
from legato.models.layers.norm import RMSNorm
from legato.models.layers.rope import Rotation, inverse_frequencies
from legato.models.native.codec_library import GATED, GELU, NORM, Attention, CodecLibrary, codec_library
from legato.models.native.library import Missing, compiled_words
from legato.models.native.packed import PackedConv1d, PackedConvTranspose1d, PackedDepthwise, PackedSnake
from legato.models.native.panels import Before, Packed, PackedLinear, Panels, fill, parameter


def compile_decoder(decoder: CodecDecoder, device: str) -> str:
    """Pack a loaded decoder where that can be; what came of it, in words."""
    if not device.startswith("cpu"):
        return f"codec by torch on {device}"
    found = codec_library() if _can_pack(decoder) else Missing("it has odd widths")
    if isinstance(found, Missing):
        return f"codec by torch, slower than compiled: {found.reason}"
    pack_decoder(decoder, found)
    return f"codec {compiled_words(tiles=_uses_tiles(decoder))}"


def _uses_tiles(decoder: CodecDecoder) -> bool:
    return any(part.described.tile_steps for part in decoder.modules() if isinstance(part, Panels))


def pack_decoder(module: nn.Module, library: CodecLibrary) -> None:
    """Replace the parts of a loaded decoder one by one, inner ones first; the ordinary weights are let go."""
    for name, child in list(module.named_children()):
        pack_decoder(child, library)
        packed = _packed_form(child, library)
        if packed is not None:
            setattr(module, name, packed)


def _can_pack(decoder: CodecDecoder) -> bool:
    """Whether all widths are even, as pairs of bfloat16 must be."""
    widths = [part.in_features for part in decoder.modules() if isinstance(part, nn.Linear)]
    return not any(width % 2 for width in (*widths, *(width for _, width in history_shapes(decoder))))


def _packed_form(module: nn.Module, library: CodecLibrary) -> nn.Module | None:
    if isinstance(module, Packed):
        return None
    if isinstance(module, FrameTransformerLayer):
        return PackedFrameLayer(module, library)
    if isinstance(module, FrameTransformer):
        return PackedTransformer(module, library)
    if isinstance(module, ConvNeXtBlock):
        return PackedConvNeXt(module, library)
    if isinstance(module, ResidualUnit):
        return PackedUnit(module)
    if isinstance(module, ResidualQuantizer):
        return PackedQuantizer(module, library)
    if isinstance(module, CausalConv1d):
        return PackedConv1d(module, library)
    if isinstance(module, CausalConvTranspose1d):
        return PackedConvTranspose1d(module, library)
    return PackedSnake(module) if isinstance(module, SnakeBeta) else None


class PackedQuantizer(Packed, ResidualQuantizer):
    """Levels, and the projection of their sum."""

    def __init__(self, quantizer: ResidualQuantizer, library: CodecLibrary) -> None:
        nn.Module.__init__(self)
        self.vq = quantizer.vq
        self.projection = Panels(quantizer.output_proj.by_time, None, library)

    def forward(self, codes: Tensor) -> Tensor:
        """As the ordinary module."""
        return self.projection.run(self.vq(codes).to(self.projection.dtype))[0]

    def plain(self) -> ResidualQuantizer:
        """The ordinary module of the same weights."""
        panels = self.projection
        with torch.device("meta"):
            quantizer = ResidualQuantizer(0, 1, panels.in_features, panels.out_features)
        quantizer.vq = copy.deepcopy(self.vq)
        fill(quantizer.output_proj, panels.by_tap(), None)
        return quantizer.eval()


class PackedUnit(Packed, ResidualUnit):
    """The unit in two calls: SnakeBeta, convolution and SnakeBeta; convolution and the input added."""

    def __init__(self, unit: ResidualUnit) -> None:
        """`unit` has packed layers."""
        nn.Module.__init__(self)
        self.act1, self.conv1, self.act2, self.conv2 = unit.act1, unit.conv1, unit.act2, unit.conv2
        assert isinstance(self.conv1, PackedConv1d)
        assert isinstance(self.act2, PackedSnake)
        self.conv1.after = self.act2.before

    def forward(self, x: Tensor, walk: HistoryWalk, lengths: Tensor | None) -> Tensor:
        """As the ordinary unit."""
        return walk.run(self.conv2, walk.run(self.conv1, x, lengths, self.act1), lengths, plus=x)

    def plain(self) -> ResidualUnit:
        """The ordinary module of the same weights."""
        with torch.device("meta"):
            unit = ResidualUnit(self.conv1.in_channels, self.conv1.dilation)
        for name in ("act1", "conv1", "act2", "conv2"):
            setattr(unit, name, copy.deepcopy(getattr(self, name)))
        return unit.eval()


class PackedConvNeXt(Packed, ConvNeXtBlock):
    """The block in three calls: convolution and norm; widening; GELU, narrowing, gain and the input added."""

    def __init__(self, block: ConvNeXtBlock, library: CodecLibrary) -> None:
        nn.Module.__init__(self)
        assert isinstance(block.dwconv, CausalDepthwiseConv1d)
        self.dwconv = PackedDepthwise(block.dwconv, block.norm, library)
        self.widen, self.narrow = PackedLinear([block.pwconv1], library), PackedLinear([block.pwconv2], library)
        self.gamma = block.gamma
        self.gain: Tensor
        self.register_buffer("gain", block.gamma.detach().float(), persistent=False)

    def forward(self, x: Tensor, walk: HistoryWalk, lengths: Tensor | None) -> Tensor:
        """As the ordinary block."""
        wide = self.widen(walk.run(self.dwconv, x, lengths))
        return self.narrow.run(wide, before=Before(GELU), scale=self.gain, plus=x)

    def plain(self) -> ConvNeXtBlock:
        """The ordinary module of the same weights."""
        with torch.device("meta"):
            block = ConvNeXtBlock(self.gamma.shape[0])
        assert isinstance(self.dwconv, PackedDepthwise)
        block.dwconv, block.norm = self.dwconv.plain(), self.dwconv.plain_norm()
        block.pwconv1, block.pwconv2 = self.widen.plain(), self.narrow.plain()
        block.gamma = parameter(self.gamma.clone())
        return block.eval()


class PackedFrameLayer(Packed, FrameTransformerLayer):
    """The layer in five calls: norm and queries, keys, values; attention; output; norm, gate and up; down."""

    def __init__(self, layer: FrameTransformerLayer, library: CodecLibrary) -> None:
        nn.Module.__init__(self)
        old, mlp = layer.self_attn, layer.mlp
        down = mlp.down_proj
        assert isinstance(down, nn.Linear)
        with torch.device("meta"):  # its sizes; its weights are below
            width = old.q_proj.in_features
            self.self_attn = SlidingWindowAttention(width, old.heads, old.kv_heads, old.head_dim, old.window)
        for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
            delattr(self.self_attn, name)
        self.qkv = PackedLinear([old.q_proj, old.k_proj, old.v_proj], library)
        self.out = PackedLinear([old.o_proj], library)
        self.gate_up, self.down = PackedLinear([mlp.gate_proj, mlp.up_proj], library), PackedLinear([down], library)
        self.input_layernorm, self.post_attention_layernorm = layer.input_layernorm, layer.post_attention_layernorm
        self.self_attn_layer_scale, self.mlp_layer_scale = layer.self_attn_layer_scale, layer.mlp_layer_scale
        self.library = library
        self.first, self.second = _norm(layer.input_layernorm), _norm(layer.post_attention_layernorm)
        self.scales = tuple(
            each.scale.detach().float() for each in (layer.self_attn_layer_scale, layer.mlp_layer_scale)
        )

    def forward(
        self, x: Tensor, history: KeyValues, by: Rotation, mask: Tensor, frames: Tensor | None
    ) -> tuple[Tensor, KeyValues]:
        """As the ordinary layer; of `by` the first half of a head is read."""
        mixed, history = self._attend(self.qkv.run(x, before=self.first), history, by, mask, frames)
        x = self.out.run(mixed, scale=self.scales[0], plus=x)
        inner = self.gate_up.run(x, before=self.second)
        return self.down.run(inner, before=Before(GATED), scale=self.scales[1], plus=x), history

    def _attend(
        self, qkv: Tensor, history: KeyValues, by: Rotation, mask: Tensor, frames: Tensor | None
    ) -> tuple[Tensor, KeyValues]:
        attention = self.self_attn
        heads, kv_heads, d = attention.heads, attention.kv_heads, attention.head_dim
        (rows, count, _), past = qkv.shape, attention.history_length
        threads = torch.get_num_threads()
        angles = [each[:, 0, :, : d // 2].float().contiguous() for each in by]
        seen, old = mask.expand(rows, 1, count, past + count).contiguous(), [each.contiguous() for each in history]
        new = [qkv.new_empty(rows * kv_heads * count * d) for _ in range(2)]
        kept = KeyValues(*(torch.empty_like(each) for each in old))
        lengths = None if frames is None else frames.contiguous()
        y, scores = qkv.new_empty(rows, count, heads * d), torch.empty(threads * (past + count))
        tensors = (qkv, *angles, seen, *old, *new, *kept, lengths, y, scores)
        addresses = (None if each is None else each.data_ptr() for each in tensors)
        half = int(qkv.dtype == torch.bfloat16)
        self.library.attend(byref(Attention(*addresses, rows, count, past, heads, kv_heads, d, half, threads)))
        return y, kept

    def plain(self) -> FrameTransformerLayer:
        """The ordinary module of the same weights."""
        layer = FrameTransformerLayer.__new__(FrameTransformerLayer)
        nn.Module.__init__(layer)
        old = self.self_attn
        with torch.device("meta"):
            attention = SlidingWindowAttention(
                self.qkv.panels.in_features, old.heads, old.kv_heads, old.head_dim, old.window
            )
            mlp = SwiGLU(self.gate_up.panels.in_features, self.down.panels.in_features)
        attention.q_proj, attention.k_proj, attention.v_proj = self.qkv.parts()
        attention.o_proj, mlp.down_proj = self.out.plain(), self.down.plain()
        mlp.gate_proj, mlp.up_proj = self.gate_up.parts()
        layer.self_attn, layer.mlp = attention, mlp
        for name in ("input_layernorm", "post_attention_layernorm", "self_attn_layer_scale", "mlp_layer_scale"):
            setattr(layer, name, copy.deepcopy(getattr(self, name)))
        return layer.eval()


class PackedTransformer(Packed, FrameTransformer):
    """The transformer at the frame rate."""

    def __init__(self, transformer: FrameTransformer, library: CodecLibrary) -> None:
        nn.Module.__init__(self)
        self.window, self.head_dim, self.theta = transformer.window, transformer.head_dim, transformer.theta
        self.layers = transformer.layers
        self.norm = transformer.norm
        before, after = transformer.input_proj, transformer.output_proj
        assert isinstance(before, nn.Linear)
        assert isinstance(after, nn.Linear)
        self.input_proj, self.output_proj = PackedLinear([before], library), PackedLinear([after], library)
        self.library, self.last = library, _norm(transformer.norm)

    def forward(
        self, x: Tensor, past: Sequence[KeyValues], positions: Tensor, frames: Tensor | None
    ) -> tuple[Tensor, list[KeyValues]]:
        """As the ordinary transformer."""
        x = self.input_proj(x)
        by, mask = self._rotation(positions, x.shape[1]), window_mask(positions, x.shape[1], self.window)
        advanced: list[KeyValues] = []
        for layer, history in zip(self.layers, past, strict=True):
            x, history = layer(x, history, by, mask, frames)
            advanced.append(history)
        last = self.output_proj
        assert isinstance(last, PackedLinear)
        return last.run(x, before=self.last), advanced

    def _rotation(self, positions: Tensor, count: int) -> Rotation:
        """Cosines and sines [B, 1, count, head_dim / 2]; torch's own may depend on where in a tensor an angle lies."""
        absolute = positions[:, None] + torch.arange(count)
        steps = inverse_frequencies(self.head_dim, self.theta)
        by = Rotation(*(torch.empty(*absolute.shape, steps.shape[0])[:, None] for _ in range(2)))
        addresses = (each.data_ptr() for each in (absolute, steps, *by))
        self.library.rotation(*addresses, absolute.numel(), steps.shape[0])
        return by

    def plain(self) -> FrameTransformer:
        """The ordinary module of the same weights."""
        transformer = FrameTransformer.__new__(FrameTransformer)
        nn.Module.__init__(transformer)
        transformer.window, transformer.head_dim, transformer.theta = self.window, self.head_dim, self.theta
        transformer.layers = copy.deepcopy(self.layers)
        transformer.norm = copy.deepcopy(self.norm)
        transformer.input_proj, transformer.output_proj = map(copy.deepcopy, (self.input_proj, self.output_proj))
        return transformer.eval()


def _norm(norm: RMSNorm) -> Before:
    return Before(NORM, norm.weight.detach().float(), None, norm.eps)
