"""The codec decoder with packed weights (`pack_decoder`), and its blocks that fuse several operations into one call.

Modules have the names, histories and results of the reference modules; only the computation differs.
"""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import byref
from typing import TypeVar

import torch
from torch import Tensor, nn

from legato.backends.cpu.codec_layers import PackedConv1d, PackedConvTranspose1d, PackedDepthwise, PackedSnake
from legato.backends.cpu.panels import FusedOp, Packed, PackedLinear, Panels, address
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

MAX_HEAD_DIM = 512
"""Fixed buffers of a head in `attention.c` (`WIDEST`)."""
_Module = TypeVar("_Module", bound=nn.Module)


def unsupported_reason(decoder: CodecDecoder) -> str:
    """Why the kernels cannot run this decoder, "" if they can. Widths must be even: bfloat16 is packed in pairs."""
    widths = [part.in_features for part in decoder.modules() if isinstance(part, nn.Linear)]
    odd = any(width % 2 for width in (*widths, *(width for _, width in history_shapes(decoder))))
    if odd:
        return "its layers have odd widths"
    widest = max((part.head_dim for part in decoder.modules() if isinstance(part, FrameTransformer)), default=0)
    return f"its attention heads have {widest} channels, more than {MAX_HEAD_DIM}" if widest > MAX_HEAD_DIM else ""


def uses_amx(decoder: CodecDecoder) -> bool:
    """Whether any layer of a packed decoder runs on AMX tiles."""
    return any(part.args.tile_steps for part in decoder.modules() if isinstance(part, Panels))


def pack_decoder(decoder: _Module, library: CodecLibrary) -> _Module:
    """A copy of `decoder` (or of a part of one) that runs in the kernels. `decoder` is unchanged."""
    return replace_modules(decoder, lambda _name, child: packed_form(child, library))


def packed_form(module: nn.Module, library: CodecLibrary) -> nn.Module | None:
    """The packed module for `module`, whose children are already packed; None if there is no packed version."""
    if isinstance(module, Packed):
        return None
    if isinstance(module, FrameTransformerLayer):
        return PackedFrameLayer(module, library)
    if isinstance(module, FrameTransformer):
        return PackedTransformer(module, library)
    if isinstance(module, ConvNeXtBlock):
        return PackedConvNeXt(module, library)
    if isinstance(module, ResidualUnit):
        return PackedResidualUnit(module)
    if isinstance(module, ResidualQuantizer):
        return PackedQuantizer(module, library)
    if isinstance(module, CausalConv1d):
        return PackedConv1d(module, library)
    if isinstance(module, CausalConvTranspose1d):
        return PackedConvTranspose1d(module, library)
    return PackedSnake(module) if isinstance(module, SnakeBeta) else None


class PackedQuantizer(Packed, ResidualQuantizer):
    """The sum of the codebook vectors, then the output projection."""

    def __init__(self, quantizer: ResidualQuantizer, library: CodecLibrary) -> None:
        nn.Module.__init__(self)
        self.vq = quantizer.vq
        self.projection = Panels(quantizer.output_proj.time_major, None, library)

    def forward(self, codes: Tensor) -> Tensor:
        """See `ResidualQuantizer`."""
        return self.projection.run(self.vq(codes).to(self.projection.dtype))[0]


class PackedResidualUnit(Packed, ResidualUnit):
    """The unit in two calls: SnakeBeta + convolution + SnakeBeta, then convolution + residual."""

    def __init__(self, unit: ResidualUnit) -> None:
        """Takes a unit whose layers are packed."""
        nn.Module.__init__(self)
        self.act1, self.conv1, self.act2, self.conv2 = unit.act1, unit.conv1, unit.act2, unit.conv2
        assert isinstance(self.conv1, PackedConv1d)
        assert isinstance(self.act2, PackedSnake)
        self.conv1.after = self.act2.op

    def forward(self, x: Tensor, histories: ConvHistories, lengths: Tensor | None) -> Tensor:
        """See `ResidualUnit`."""
        return histories.run(self.conv2, histories.run(self.conv1, x, lengths, self.act1), lengths, residual=x)


class PackedConvNeXt(Packed, ConvNeXtBlock):
    """The block in three calls: depthwise convolution + norm, first linear, GELU + second linear + scale + residual."""

    def __init__(self, block: ConvNeXtBlock, library: CodecLibrary) -> None:
        nn.Module.__init__(self)
        assert isinstance(block.dwconv, CausalDepthwiseConv1d)
        self.dwconv = PackedDepthwise(block.dwconv, block.norm, library)
        self.first_linear, self.second_linear = (
            PackedLinear([block.pwconv1], library),
            PackedLinear([block.pwconv2], library),
        )
        self.gamma = block.gamma
        self.gain: Tensor
        self.register_buffer("gain", block.gamma.detach().float(), persistent=False)

    def forward(self, x: Tensor, histories: ConvHistories, lengths: Tensor | None) -> Tensor:
        """See `ConvNeXtBlock`."""
        wide = self.first_linear(histories.run(self.dwconv, x, lengths))
        return self.second_linear.run(wide, before=FusedOp(GELU), scale=self.gain, residual=x)


class PackedFrameLayer(Packed, FrameTransformerLayer):
    """The layer in five calls: norm + QKV linear, attention, output linear, norm + gate and up linear, down linear."""

    def __init__(self, layer: FrameTransformerLayer, library: CodecLibrary) -> None:
        nn.Module.__init__(self)
        attention, mlp = layer.self_attn, layer.mlp
        down = mlp.down_proj
        assert isinstance(down, nn.Linear)
        self.self_attn = shallow_copy(attention)  # for its sizes; the projections are packed below
        for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
            del self.self_attn._modules[name]
        self.qkv = PackedLinear([attention.q_proj, attention.k_proj, attention.v_proj], library)
        self.out = PackedLinear([attention.o_proj], library)
        self.gate_up, self.down = PackedLinear([mlp.gate_proj, mlp.up_proj], library), PackedLinear([down], library)
        self.input_layernorm, self.post_attention_layernorm = layer.input_layernorm, layer.post_attention_layernorm
        self.self_attn_layer_scale, self.mlp_layer_scale = layer.self_attn_layer_scale, layer.mlp_layer_scale
        self.library = library
        self.first_norm, self.second_norm = _norm(layer.input_layernorm), _norm(layer.post_attention_layernorm)
        self.scales = tuple(
            each.scale.detach().float() for each in (layer.self_attn_layer_scale, layer.mlp_layer_scale)
        )

    def forward(
        self, x: Tensor, history: KeyValues, rope: RopeTables, mask: Tensor, frames: Tensor | None
    ) -> tuple[Tensor, KeyValues]:
        """See `FrameTransformerLayer`. Only the first half of the head dimension of `rope` is read."""
        attended, history = self._attend(self.qkv.run(x, before=self.first_norm), history, rope, mask, frames)
        x = self.out.run(attended, scale=self.scales[0], residual=x)
        inner = self.gate_up.run(x, before=self.second_norm)
        return self.down.run(inner, before=FusedOp(GATED), scale=self.scales[1], residual=x), history

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
    """The transformer over frames."""

    def __init__(self, transformer: FrameTransformer, library: CodecLibrary) -> None:
        nn.Module.__init__(self)
        self.window, self.head_dim, self.theta = transformer.window, transformer.head_dim, transformer.theta
        self.layers = transformer.layers
        self.norm = transformer.norm
        before, after = transformer.input_proj, transformer.output_proj
        assert isinstance(before, nn.Linear)
        assert isinstance(after, nn.Linear)
        self.input_proj, self.output_proj = PackedLinear([before], library), PackedLinear([after], library)
        self.library, self.last_norm = library, _norm(transformer.norm)

    def forward(
        self, x: Tensor, past: Sequence[KeyValues], positions: Tensor, frames: Tensor | None
    ) -> tuple[Tensor, list[KeyValues]]:
        """See `FrameTransformer`."""
        x = self.input_proj(x)
        rope, mask = self._rope_tables(positions, x.shape[1]), window_mask(positions, x.shape[1], self.window)
        advanced: list[KeyValues] = []
        for layer, history in zip(self.layers, past, strict=True):
            x, next_history = layer(x, history, rope, mask, frames)
            advanced.append(next_history)
        output_proj = self.output_proj
        assert isinstance(output_proj, PackedLinear)
        return output_proj.run(x, before=self.last_norm), advanced

    def _rope_tables(self, positions: Tensor, count: int) -> RopeTables:
        """Cosines and sines [B, 1, count, head_dim / 2], computed in C.

        PyTorch's vectorized functions may round an angle differently depending on its place in the tensor.
        """
        absolute = positions[:, None] + torch.arange(count)
        frequencies = inverse_frequencies(self.head_dim, self.theta)
        rope = RopeTables(*(torch.empty(*absolute.shape, frequencies.shape[0])[:, None] for _ in range(2)))
        addresses = (each.data_ptr() for each in (absolute, frequencies, *rope))
        self.library.rope_tables(*addresses, absolute.numel(), frequencies.shape[0])
        return rope


def _norm(norm: RMSNorm) -> FusedOp:
    return FusedOp(NORM, norm.weight.detach().float(), None, norm.eps)
