"""What one step has to read and to multiply, whatever kernel does it: bytes and FLOPs, counted from the weights.

Owns nothing and computes no model. Weights count as often as a step goes through them, a linear layer in the form in
which it keeps its numbers; activations, which a good kernel keeps near, do not count. Embeddings are look-ups.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from legato.config.model import TransformerConfig
from legato.models.codec.decoder import CodecDecoder
from legato.models.codec.quantizer import Codebook
from legato.models.layers.conv import CausalConvTranspose1d
from legato.models.load import LoadedModel
from legato.models.native.packed import PackedDepthwise
from legato.models.native.panels import Panels
from legato.models.talker.state import TalkerCache

_PER_MAC = 2
_CONV_DIMS = 3


@dataclass(frozen=True, slots=True)
class Work:
    """`weight_bytes` and `state_bytes` (KV or history, read and written) of one step; `flops` of all its rows.

    `set_bytes`: what is read again and again. Where it fits a cache, the cache's speed is the limit.
    """

    weight_bytes: int
    state_bytes: int
    flops: int
    set_bytes: int

    @property
    def bytes(self) -> int:
        """All that is moved at least."""
        return self.weight_bytes + self.state_bytes


def talker_work(model: LoadedModel, cache: TalkerCache, *, rows: int, context: int) -> Work:
    """One position of `rows` sequences that have `context` positions behind them: input, layers, first code's head."""
    talker, stack = model.talker, model.config.talker.stack
    parts: list[nn.Module] = [talker.model.layers, talker.model.norm, talker.codec_head]
    parts += [child for name, child in talker.named_children() if name == "text_projection"]
    weights = sum(map(stored_bytes, parts))
    attention = stack.num_hidden_layers * _attention_macs(stack, context + 1)
    return Work(
        weight_bytes=weights,
        state_bytes=rows * (context + 2) * cache.bytes_per_position,
        flops=_PER_MAC * rows * (sum(map(linear_macs, parts)) + attention),
        set_bytes=weights + rows * (context + 1) * cache.bytes_per_position,
    )


def predictor_work(model: LoadedModel, *, rows: int) -> Work:
    """One frame of `rows` sequences: a pass through the layers for each residual codebook, each head once."""
    predictor, config = model.code_predictor, model.config.code_predictor
    passes = config.num_codebooks - 1
    body: list[nn.Module] = [predictor.model.layers, predictor.model.norm, predictor.small_to_mtp_projection]
    layers, heads = sum(map(stored_bytes, body)), stored_bytes(predictor.lm_head)
    seen = sum(range(2, config.num_codebooks + 1))
    attention = config.stack.num_hidden_layers * _attention_macs(config.stack, 1) * seen
    macs = (passes + 1) * sum(map(linear_macs, body)) + linear_macs(predictor.lm_head) + attention
    return Work(
        weight_bytes=passes * layers + heads, state_bytes=0, flops=_PER_MAC * rows * macs, set_bytes=layers + heads
    )


def codec_work(model: LoadedModel, *, rows: int, frames: int) -> Work:
    """A window of `frames` frames of `rows` streams."""
    decoder = model.decoder
    history = rows * decoder.fresh(1).row_bytes
    weights = stored_bytes(decoder)
    return Work(
        weight_bytes=weights,
        state_bytes=2 * history,
        flops=_PER_MAC * rows * frames * codec_macs_per_frame(decoder),
        set_bytes=weights + history,
    )


def codec_macs_per_frame(decoder: CodecDecoder) -> int:
    """Multiply-accumulates of one frame. Modules stand in the order in which they run; each upsampling adds positions.

    A transposed convolution works at the rate of its input.
    """
    config, macs, positions, stride = decoder.config, 0, 1, 1
    for module in decoder.modules():
        if isinstance(module, CausalConvTranspose1d):
            stride = module.stride
        weight = getattr(module, "weight", None)
        if isinstance(weight, Tensor) and weight.dim() == _CONV_DIMS:
            macs += positions * weight.numel()
            positions, stride = positions * stride, 1
        elif isinstance(module, Panels | PackedDepthwise):
            macs += positions * own_linear_macs(module)
            positions, stride = positions * stride, 1
        else:
            macs += positions * own_linear_macs(module)
    per_layer = 2 * config.num_attention_heads * config.head_dim * config.attention_window
    return macs + config.num_hidden_layers * per_layer


def stored_bytes(module: nn.Module) -> int:
    """Bytes of all numbers below `module` but those that are looked up. Opaque weights tell their `weight_bytes`."""
    if isinstance(module, nn.Embedding | Codebook):
        return 0
    opaque = getattr(module, "weight_bytes", None)
    if isinstance(opaque, int):
        return opaque
    own = [*module.parameters(recurse=False), *module.buffers(recurse=False)]
    here = sum(each.numel() * each.element_size() for each in own)
    return here + sum(map(stored_bytes, module.children()))


def linear_macs(module: nn.Module) -> int:
    """Multiply-accumulates of one position through every linear layer below `module`."""
    return sum(map(own_linear_macs, module.modules()))


def own_linear_macs(module: nn.Module) -> int:
    """Those of `module` itself, if it is a linear layer in whatever number format; else 0."""
    inputs, outputs = getattr(module, "in_features", None), getattr(module, "out_features", None)
    return inputs * outputs if isinstance(inputs, int) and isinstance(outputs, int) else 0


def _attention_macs(stack: TransformerConfig, positions: int) -> int:
    """Scores and sums of one new position that sees `positions`, in one layer."""
    return 2 * stack.num_attention_heads * stack.head_dim * positions
