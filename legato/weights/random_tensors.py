"""Names, shapes and distributions of the tensors of random checkpoints, derived from the configuration.

This is deliberately independent of the modules: the loader checks that both agree. The distributions are such that
outputs depend on inputs; with small weights, tiny LayerScale or empty codebooks, tests would prove nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from math import prod

from legato.config.model import (
    BpeTextConfig,
    CodecConfig,
    CodecDecoderConfig,
    CodecEncoderConfig,
    ModelConfig,
    TransformerConfig,
)


class Init(Enum):
    """Distribution of a tensor's values: standard deviation (normal) or range (uniform)."""

    MATRIX = "normal, 1.2 / sqrt(inputs)"
    HEAD = "normal, 1.5 / sqrt(inputs)"
    TRUNK = "normal, 0.6 / sqrt(inputs)"
    BRANCH = "normal, 0.3 / sqrt(inputs)"
    """TRUNK, BRANCH: the waveform decoder, whose periodic activations would otherwise amplify rounding errors."""
    WAVE = "normal, 0.2 / sqrt(inputs)"
    """The last convolution: samples stay within [-1, 1]."""
    EMBEDDING = "normal, 0.6"
    BIAS = "normal, 0.1"
    NORM = "uniform, 0.7 to 1.3"
    SCALE = "uniform, 0.5 to 1"
    SNAKE = "normal, 0.2"
    TABLE = "normal, 1"
    USAGE = "uniform, 0.5 to 2"
    FLAG = "ones"


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One tensor. `inputs`: its fan-in, if the distribution depends on it."""

    name: str
    shape: tuple[int, ...]
    init: Init
    inputs: int = 1


Specs = Iterator[TensorSpec]


def _linear(name: str, outputs: int, inputs: int, *, bias: bool = False, init: Init = Init.MATRIX) -> Specs:
    yield TensorSpec(f"{name}.weight", (outputs, inputs), init, inputs)
    if bias:
        yield TensorSpec(f"{name}.bias", (outputs,), Init.BIAS)


def _conv(name: str, outputs: int, inputs: int, kernel: int, *, bias: bool = True, init: Init = Init.MATRIX) -> Specs:
    yield TensorSpec(f"{name}.weight", (outputs, inputs, kernel), init, inputs * kernel)
    if bias:
        yield TensorSpec(f"{name}.bias", (outputs,), Init.BIAS)


def _up(name: str, inputs: int, outputs: int, kernel: int, stride: int, init: Init = Init.MATRIX) -> Specs:
    """Transposed convolution: an output is the sum of kernel / stride taps of each input channel."""
    yield TensorSpec(f"{name}.weight", (inputs, outputs, kernel), init, inputs * kernel // stride)
    yield TensorSpec(f"{name}.bias", (outputs,), Init.BIAS)


def _layer_norm(name: str, width: int) -> Specs:
    yield TensorSpec(f"{name}.weight", (width,), Init.NORM)
    yield TensorSpec(f"{name}.bias", (width,), Init.BIAS)


def _attention(name: str, width: int, heads: int, kv_heads: int, head_dim: int) -> Specs:
    yield from _linear(f"{name}.q_proj", heads * head_dim, width)
    yield from _linear(f"{name}.k_proj", kv_heads * head_dim, width)
    yield from _linear(f"{name}.v_proj", kv_heads * head_dim, width)
    yield from _linear(f"{name}.o_proj", width, heads * head_dim)


def _swiglu(name: str, width: int, inner: int) -> Specs:
    yield from _linear(f"{name}.gate_proj", inner, width)
    yield from _linear(f"{name}.up_proj", inner, width)
    yield from _linear(f"{name}.down_proj", width, inner)


def _stack(name: str, stack: TransformerConfig) -> Specs:
    width = stack.hidden_size
    for i in range(stack.num_hidden_layers):
        layer = f"{name}.layers.{i}"
        yield from _attention(
            f"{layer}.self_attn", width, stack.num_attention_heads, stack.num_key_value_heads, stack.head_dim
        )
        yield TensorSpec(f"{layer}.self_attn.q_norm.weight", (stack.head_dim,), Init.NORM)
        yield TensorSpec(f"{layer}.self_attn.k_norm.weight", (stack.head_dim,), Init.NORM)
        yield from _swiglu(f"{layer}.mlp", width, stack.intermediate_size)
        yield TensorSpec(f"{layer}.input_layernorm.weight", (width,), Init.NORM)
        yield TensorSpec(f"{layer}.post_attention_layernorm.weight", (width,), Init.NORM)
    yield TensorSpec(f"{name}.norm.weight", (width,), Init.NORM)


# --- the main file ---------------------------------------------------------------------------------------------------


def main_tensors(config: ModelConfig) -> Specs:
    """All tensors of `model.safetensors`."""
    talker, predictor = config.talker, config.code_predictor
    width = talker.stack.hidden_size
    yield from _stack("talker.model", talker.stack)
    yield TensorSpec("talker.model.codec_embedding.weight", (talker.vocab_size, width), Init.EMBEDDING)
    yield from _text(config)
    yield from _linear("talker.codec_head", talker.vocab_size, width, init=Init.HEAD)
    yield from _stack("talker.code_predictor.model", predictor.stack)
    inner, codes = predictor.stack.hidden_size, predictor.codebook_size
    for j in range(predictor.num_codebooks - 1):
        name = f"talker.code_predictor.model.codec_embedding.{j}.weight"
        yield TensorSpec(name, (codes, width), Init.EMBEDDING)
    for j in range(predictor.num_codebooks - 1):
        yield from _linear(f"talker.code_predictor.lm_head.{j}", codes, inner, init=Init.HEAD)
    if inner != width:
        yield from _linear("talker.code_predictor.small_to_mtp_projection", inner, width, bias=True)
    if config.speaker_encoder is not None:
        yield from _speaker_encoder(config.speaker_encoder.enc_dim)


def _text(config: ModelConfig) -> Specs:
    text, width = config.talker.text, config.talker.stack.hidden_size
    if isinstance(text, BpeTextConfig):
        inner = text.text_hidden_size
        yield TensorSpec("talker.model.text_embedding.weight", (text.text_vocab_size, inner), Init.EMBEDDING)
        yield from _linear("talker.text_projection.linear_fc1", inner, inner, bias=True)
        yield from _linear("talker.text_projection.linear_fc2", width, inner, bias=True)
        return
    for j in range(text.tables):
        yield TensorSpec(f"talker.model.phone_embedding.{j}.weight", (len(text.phones), width), Init.EMBEDDING)
    sizes = text.duration
    inner = sizes.hidden_size
    yield TensorSpec("duration.phone_embedding.weight", (len(text.phones), inner), Init.EMBEDDING)
    yield TensorSpec("duration.speaker_embedding.weight", (len(config.talker.speakers), inner), Init.EMBEDDING)
    for i in range(sizes.num_layers):
        yield from _conv(f"duration.convs.{i}", inner, inner, sizes.kernel_size)
        yield from _layer_norm(f"duration.norms.{i}", inner)
    yield from _linear("duration.head", 1, inner, bias=True)


def _speaker_encoder(width: int) -> Specs:
    """Official sizes; they are not part of the JSON configuration."""
    yield from _conv("speaker_encoder.blocks.0.conv", 512, 128, 5)
    for i in (1, 2, 3):
        block = f"speaker_encoder.blocks.{i}"
        yield from _conv(f"{block}.tdnn1.conv", 512, 512, 1)
        for j in range(7):
            yield from _conv(f"{block}.res2net_block.blocks.{j}.conv", 64, 64, 3)
        yield from _conv(f"{block}.tdnn2.conv", 512, 512, 1)
        yield from _conv(f"{block}.se_block.conv1", 128, 512, 1)
        yield from _conv(f"{block}.se_block.conv2", 512, 128, 1)
    yield from _conv("speaker_encoder.mfa.conv", 1536, 1536, 1)
    yield from _conv("speaker_encoder.asp.tdnn.conv", 128, 4608, 1)
    yield from _conv("speaker_encoder.asp.conv", 1536, 128, 1)
    yield from _conv("speaker_encoder.fc", width, 3072, 1)


# --- the speech tokenizer --------------------------------------------------------------------------------------------


def codec_tensors(config: CodecConfig) -> Specs:
    """All tensors of the speech tokenizer's `model.safetensors`, including unused ones."""
    if config.encoder is not None:
        yield from _encoder(config.encoder, config.frame_samples)
    yield from _decoder(config.decoder)


def _encoder(config: CodecEncoderConfig, frame_samples: int) -> Specs:
    yield from _encoder_convs(config)
    width = config.hidden_size
    for i in range(config.num_hidden_layers):
        layer = f"encoder.encoder_transformer.layers.{i}"
        heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
        yield from _attention(f"{layer}.self_attn", width, heads, kv_heads, config.head_dim)
        yield from _linear(f"{layer}.mlp.fc1", config.intermediate_size, width)
        yield from _linear(f"{layer}.mlp.fc2", width, config.intermediate_size)
        yield from _layer_norm(f"{layer}.input_layernorm", width)
        yield from _layer_norm(f"{layer}.post_attention_layernorm", width)
        yield TensorSpec(f"{layer}.self_attn_layer_scale.scale", (width,), Init.SCALE)
        yield TensorSpec(f"{layer}.mlp_layer_scale.scale", (width,), Init.SCALE)
    latents = frame_samples // prod(config.upsampling_ratios)
    yield from _conv("encoder.downsample.conv", width, width, 2 * latents, bias=False)
    levels = {
        "semantic": config.num_semantic_quantizers,
        "acoustic": config.num_quantizers - config.num_semantic_quantizers,
    }
    for kind, count in levels.items():
        name = f"encoder.quantizer.{kind}_residual_vector_quantizer"
        for i in range(count):
            codebook = f"{name}.layers.{i}.codebook"
            yield TensorSpec(f"{codebook}.initialized", (1,), Init.FLAG)
            yield TensorSpec(f"{codebook}.cluster_usage", (config.codebook_size,), Init.USAGE)
            yield TensorSpec(f"{codebook}.embed_sum", (config.codebook_size, config.codebook_dim), Init.TABLE)
        yield from _conv(f"{name}.input_proj", config.codebook_dim, width, 1, bias=False)
        yield from _conv(f"{name}.output_proj", width, config.codebook_dim, 1, bias=False)


def _encoder_convs(config: CodecEncoderConfig) -> Specs:
    """Activations between the convolutions have no tensors, but count in the layer numbers."""
    at, channels = 0, config.num_filters
    yield from _conv(f"encoder.encoder.layers.{at}.conv", channels, 1, config.kernel_size)
    for ratio in reversed(config.upsampling_ratios):
        for _ in range(config.num_residual_layers):
            at += 1
            inner = channels // config.compress
            yield from _conv(f"encoder.encoder.layers.{at}.block.1.conv", inner, channels, config.residual_kernel_size)
            yield from _conv(f"encoder.encoder.layers.{at}.block.3.conv", channels, inner, 1)
        at += 2
        yield from _conv(f"encoder.encoder.layers.{at}.conv", 2 * channels, channels, 2 * ratio)
        channels *= 2
    yield from _conv(f"encoder.encoder.layers.{at + 2}.conv", config.hidden_size, channels, config.last_kernel_size)


def _decoder(config: CodecDecoderConfig) -> Specs:
    yield from _frame_transformer(config)
    table = config.codebook_dim // 2
    levels = {
        "rvq_first": config.num_semantic_quantizers,
        "rvq_rest": config.num_quantizers - config.num_semantic_quantizers,
    }
    for kind, count in levels.items():
        name = f"decoder.quantizer.{kind}"
        yield from _conv(f"{name}.input_proj", table, config.codebook_dim, 1, bias=False)
        yield from _conv(f"{name}.output_proj", config.codebook_dim, table, 1, bias=False)
        for i in range(count):
            codebook = f"{name}.vq.layers.{i}._codebook"
            yield TensorSpec(f"{codebook}.cluster_usage", (config.codebook_size,), Init.USAGE)
            yield TensorSpec(f"{codebook}.embedding_sum", (config.codebook_size, table), Init.TABLE)
    latent = config.latent_dim
    yield from _conv("decoder.pre_conv.conv", latent, config.codebook_dim, 3)
    for i, ratio in enumerate(config.upsampling_ratios):
        stage = f"decoder.upsample.{i}"
        yield from _up(f"{stage}.0.conv", latent, latent, ratio, ratio)
        yield TensorSpec(f"{stage}.1.gamma", (latent,), Init.SCALE)
        yield from _conv(f"{stage}.1.dwconv.conv", latent, 1, 7)
        yield from _layer_norm(f"{stage}.1.norm", latent)
        yield from _linear(f"{stage}.1.pwconv1", 4 * latent, latent, bias=True)
        yield from _linear(f"{stage}.1.pwconv2", latent, 4 * latent, bias=True)
    yield from _waveform_decoder(config)


def _frame_transformer(config: CodecDecoderConfig) -> Specs:
    name, width = "decoder.pre_transformer", config.hidden_size
    for i in range(config.num_hidden_layers):
        layer = f"{name}.layers.{i}"
        heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
        yield from _attention(f"{layer}.self_attn", width, heads, kv_heads, config.head_dim)
        yield from _swiglu(f"{layer}.mlp", width, config.intermediate_size)
        yield TensorSpec(f"{layer}.input_layernorm.weight", (width,), Init.NORM)
        yield TensorSpec(f"{layer}.post_attention_layernorm.weight", (width,), Init.NORM)
        yield TensorSpec(f"{layer}.self_attn_layer_scale.scale", (width,), Init.SCALE)
        yield TensorSpec(f"{layer}.mlp_layer_scale.scale", (width,), Init.SCALE)
    yield TensorSpec(f"{name}.norm.weight", (width,), Init.NORM)
    yield from _linear(f"{name}.input_proj", width, config.latent_dim, bias=True)
    yield from _linear(f"{name}.output_proj", config.latent_dim, width, bias=True)


def _waveform_decoder(config: CodecDecoderConfig) -> Specs:
    channels = config.decoder_dim
    yield from _conv("decoder.decoder.0.conv", channels, config.latent_dim, 7)
    last = len(config.upsample_rates) + 1
    for i, rate in enumerate(config.upsample_rates, start=1):
        block = f"decoder.decoder.{i}.block"
        yield from _snake(f"{block}.0", channels)
        yield from _up(f"{block}.1.conv", channels, channels // 2, 2 * rate, rate, Init.TRUNK)
        channels //= 2
        for unit in (2, 3, 4):
            yield from _snake(f"{block}.{unit}.act1", channels)
            yield from _conv(f"{block}.{unit}.conv1.conv", channels, channels, 7)
            yield from _snake(f"{block}.{unit}.act2", channels)
            yield from _conv(f"{block}.{unit}.conv2.conv", channels, channels, 1, init=Init.BRANCH)
    yield from _snake(f"decoder.decoder.{last}", channels)
    yield from _conv(f"decoder.decoder.{last + 1}.conv", 1, channels, 7, init=Init.WAVE)


def _snake(name: str, channels: int) -> Specs:
    yield TensorSpec(f"{name}.alpha", (channels,), Init.SNAKE)
    yield TensorSpec(f"{name}.beta", (channels,), Init.SNAKE)
