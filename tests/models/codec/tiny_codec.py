"""Tiny codecs with random weights: every layer affects the output, and nothing saturates.

The usual initialization (LayerScale 0.01, ConvNeXt gamma 1e-6) makes most layers negligible, and its samples are
clamped. Streaming tests on such a model could not detect a lost history.
"""

from __future__ import annotations

from typing import TypeVar

import torch
from torch import nn

from legato.config.model import CodecDecoderConfig, CodecEncoderConfig
from legato.models.codec.decoder import CodecDecoder
from legato.models.codec.encoder import CodecEncoder

Module = TypeVar("Module", bound=nn.Module)

DECODER = CodecDecoderConfig(
    num_quantizers=4,
    num_semantic_quantizers=1,
    codebook_size=32,
    codebook_dim=16,
    latent_dim=24,
    hidden_size=16,
    intermediate_size=24,
    num_hidden_layers=2,
    num_attention_heads=2,
    num_key_value_heads=2,
    head_dim=8,
    rms_norm_eps=1e-5,
    rope_theta=1e4,
    attention_window=6,
    decoder_dim=32,
    upsampling_ratios=(2, 2),
    upsample_rates=(3, 2),
)
"""24 samples per frame, attention window of 6 frames."""

EMBEDDED = CodecDecoderConfig(
    num_quantizers=8,
    num_semantic_quantizers=1,
    codebook_size=16,
    codebook_dim=16,
    latent_dim=24,
    hidden_size=16,
    intermediate_size=24,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=4,
    rms_norm_eps=1e-5,
    rope_theta=1e4,
    attention_window=9,
    decoder_dim=16,
    upsampling_ratios=(2, 2, 1),
    upsample_rates=(2, 5),
)
"""The structure of the embedded voice's codec: eight codebooks, an upsampling ratio of 1, grouped-query attention."""

ENCODER = CodecEncoderConfig(
    num_filters=4,
    kernel_size=7,
    last_kernel_size=3,
    residual_kernel_size=3,
    num_residual_layers=1,
    compress=2,
    dilation_growth_rate=2,
    upsampling_ratios=(3, 2),
    hidden_size=8,
    num_hidden_layers=2,
    num_attention_heads=2,
    num_key_value_heads=2,
    head_dim=4,
    intermediate_size=16,
    norm_eps=1e-5,
    rope_theta=1e4,
    num_quantizers=6,
    num_semantic_quantizers=1,
    valid_quantizers=4,
    codebook_size=16,
    codebook_dim=6,
)
ENCODER_FRAME_SAMPLES = 12


def randomize(module: Module, seed: int) -> Module:
    """Weights that keep activations near 1: fan-in scaled, scales and norms around 1, small biases."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if name.endswith(("scale", "gamma", "norm.weight")):
                parameter.copy_(0.7 + 0.2 * noise)
            elif parameter.dim() == 1:
                parameter.copy_(0.1 * noise)
            elif name.endswith("table"):
                parameter.copy_(noise)
            else:
                parameter.copy_(0.9 * noise * parameter[0].numel() ** -0.5)
    return module.eval()


def tiny_decoder(
    config: CodecDecoderConfig = DECODER, *, dtype: torch.dtype = torch.float64, seed: int = 0
) -> CodecDecoder:
    """A decoder whose samples have a standard deviation of about 0.3."""
    decoder = randomize(CodecDecoder(config), seed)
    last = decoder.decoder[-1]
    codes = torch.randint(
        config.codebook_size, (1, 30, config.num_quantizers), generator=torch.Generator().manual_seed(seed)
    )
    with torch.no_grad():
        for _ in range(2):  # the first pass avoids clamping, the second sets the level
            for parameter in last.parameters():
                parameter.mul_(1e-3)
            deviation = decoder(decoder.initial_history(1), codes)[0].std()
            for parameter in last.parameters():
                parameter.mul_(0.3 / deviation)
    return decoder.to(dtype).requires_grad_(False)


def tiny_encoder(config: CodecEncoderConfig = ENCODER, *, seed: int = 0) -> CodecEncoder:
    """A float32 encoder with frames of 12 samples."""
    return randomize(CodecEncoder(config, ENCODER_FRAME_SAMPLES), seed)
