"""The codec decoder with packed weights (`pack_decoder`), and the blocks that fuse several operations into one call.

Names, histories and graph are those of the reference modules; only the computation differs.
"""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import byref
from typing import TypeVar

import torch
from torch import Tensor, nn

from legato.backends.cpu.codec_layers import PackedConv1d, PackedConvTranspose1d, PackedDepthwise, PackedSnake
from legato.backends.cpu.panels import Before, Packed, PackedLinear, Panels, address
from legato.kernels.codec_library import GATED, GELU, NORM, Attention, CodecLibrary
from legato.kernels.threads import num_threads
from legato.models.codec.decoder import CodecDecoder
from legato.models.codec.quantizer import ResidualQuantizer
from legato.models.codec.transformer import FrameTransformer, FrameTransformerLayer
from legato.models.codec.upsample import ConvNeXtBlock, ResidualUnit, SnakeBeta
from legato.models.layers.attention import KeyValues, window_mask
from legato.models.layers.conv import (
    CausalConv1d,
    CausalConvTranspose1d,
    CausalDepthwiseConv1d,
    ConvHistories,
    history_shapes,
)
from legato.models.layers.norm import RMSNorm
from legato.models.layers.rope import RopeTables, inverse_frequencies
from legato.weights.module_tree import replace_modules, shallow_copy

_Module = TypeVar("_Module", bound=nn.Module)


def unpackable(decoder: CodecDecoder) -> str:
    """Why the kernels cannot run this decoder, "" if they can: all widths must be even (bfloat16 comes in pairs)."""
    widths = [part.in_features for part in decoder.modules() if isinstance(part, nn.Linear)]
    odd = any(width % 2 for width in (*widths, *(width for _, width in history_shapes(decoder))))
    return "its layers have odd widths" if odd else ""


def uses_amx(decoder: CodecDecoder) -> bool:
    """Whether any layer of a packed decoder runs on AMX tiles."""
    return any(part.args.tile_steps for part in decoder.modules() if isinstance(part, Panels))


def pack_decoder(decoder: _Module, library: CodecLibrary) -> _Module:
    """A decoder (or a part of one) that runs in the kernels; `decoder` is unchanged."""
    return replace_modules(decoder, lambda _name, child: packed_form(child, library))


def packed_form(module: nn.Module, library: CodecLibrary) -> nn.Module | None:
    """The packed form of one module whose children are packed already; None for modules without one."""
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
        self.projection = Panels(quantizer.output_proj.time_major, None, library)

    def forward(self, codes: Tensor) -> Tensor:
        """As the ordinary module."""
        return self.projection.run(self.vq(codes).to(self.projection.dtype))[0]


class PackedUnit(Packed, ResidualUnit):
    """The unit in two calls: SnakeBeta, convolution and SnakeBeta; convolution and the input added."""

    def __init__(self, unit: ResidualUnit) -> None:
        """`unit` has packed layers."""
        nn.Module.__init__(self)
        self.act1, self.conv1, self.act2, self.conv2 = unit.act1, unit.conv1, unit.act2, unit.conv2
        assert isinstance(self.conv1, PackedConv1d)
        assert isinstance(self.act2, PackedSnake)
        self.conv1.after = self.act2.before

    def forward(self, x: Tensor, histories: ConvHistories, lengths: Tensor | None) -> Tensor:
        """As the ordinary unit."""
        return histories.run(self.conv2, histories.run(self.conv1, x, lengths, self.act1), lengths, residual=x)


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

    def forward(self, x: Tensor, histories: ConvHistories, lengths: Tensor | None) -> Tensor:
        """As the ordinary block."""
        wide = self.widen(histories.run(self.dwconv, x, lengths))
        return self.narrow.run(wide, before=Before(GELU), scale=self.gain, plus=x)


class PackedFrameLayer(Packed, FrameTransformerLayer):
    """The layer in five calls: norm and queries, keys, values; attention; output; norm, gate and up; down."""

    def __init__(self, layer: FrameTransformerLayer, library: CodecLibrary) -> None:
        nn.Module.__init__(self)
        old, mlp = layer.self_attn, layer.mlp
        down = mlp.down_proj
        assert isinstance(down, nn.Linear)
        self.self_attn = shallow_copy(old)  # its sizes; the projections are packed below
        for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
            del self.self_attn._modules[name]
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
        self, x: Tensor, history: KeyValues, rope: RopeTables, mask: Tensor, frames: Tensor | None
    ) -> tuple[Tensor, KeyValues]:
        """As the ordinary layer; of `rope` the first half of a head is read."""
        mixed, history = self._attend(self.qkv.run(x, before=self.first), history, rope, mask, frames)
        x = self.out.run(mixed, scale=self.scales[0], plus=x)
        inner = self.gate_up.run(x, before=self.second)
        return self.down.run(inner, before=Before(GATED), scale=self.scales[1], plus=x), history

    def _attend(
        self, qkv: Tensor, history: KeyValues, rope: RopeTables, mask: Tensor, frames: Tensor | None
    ) -> tuple[Tensor, KeyValues]:
        attention = self.self_attn
        heads, kv_heads, d = attention.heads, attention.kv_heads, attention.head_dim
        (rows, count, _), past = qkv.shape, attention.history_length
        threads = num_threads()
        cos, sin = (each[:, 0, :, : d // 2].float().contiguous() for each in rope)
        window = mask.expand(rows, 1, count, past + count).contiguous()
        past_keys, past_values = (each.contiguous() for each in history)
        keys, values = (qkv.new_empty(rows * kv_heads * count * d) for _ in range(2))
        kept_keys, kept_values = torch.empty_like(past_keys), torch.empty_like(past_values)
        lengths = None if frames is None else frames.contiguous()
        y, scores = qkv.new_empty(rows, count, heads * d), torch.empty(threads * (past + count))
        args = Attention(
            qkv=address(qkv),
            cos=address(cos),
            sin=address(sin),
            mask=address(window),
            past_keys=address(past_keys),
            past_values=address(past_values),
            keys=address(keys),
            values=address(values),
            kept_keys=address(kept_keys),
            kept_values=address(kept_values),
            lengths=address(lengths),
            y=address(y),
            scores=address(scores),
            batch=rows,
            count=count,
            past=past,
            heads=heads,
            kv_heads=kv_heads,
            d=d,
            half=int(qkv.dtype == torch.bfloat16),
            threads=threads,
        )
        self.library.attend(byref(args))
        return y, KeyValues(kept_keys, kept_values)


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
        rope, mask = self._rotation(positions, x.shape[1]), window_mask(positions, x.shape[1], self.window)
        advanced: list[KeyValues] = []
        for layer, history in zip(self.layers, past, strict=True):
            x, history = layer(x, history, rope, mask, frames)
            advanced.append(history)
        last = self.output_proj
        assert isinstance(last, PackedLinear)
        return last.run(x, before=self.last), advanced

    def _rotation(self, positions: Tensor, count: int) -> RopeTables:
        """Cosines and sines [B, 1, count, head_dim / 2]; torch's own may depend on where in a tensor an angle lies."""
        absolute = positions[:, None] + torch.arange(count)
        steps = inverse_frequencies(self.head_dim, self.theta)
        rope = RopeTables(*(torch.empty(*absolute.shape, steps.shape[0])[:, None] for _ in range(2)))
        addresses = (each.data_ptr() for each in (absolute, steps, *rope))
        self.library.rope_tables(*addresses, absolute.numel(), steps.shape[0])
        return rope


def _norm(norm: RMSNorm) -> Before:
    return Before(NORM, norm.weight.detach().float(), None, norm.eps)
