"""The speech tokenizer's `config.json` for random checkpoints, in the official size and a tiny one.

Plain data; `random_tensors.py` derives the tensors from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

Json: TypeAlias = Mapping[str, object]


def codec_json(*, tiny: bool, embedded: bool) -> Json:
    top: dict[str, object] = {
        "architectures": ["Qwen3TTSTokenizerV2Model"],
        "model_type": "qwen3_tts_tokenizer_12hz",
        "input_sample_rate": 24000,
        "output_sample_rate": 24000,
        "encode_downsample_rate": 1920,
        "decode_upsample_rate": 1920,
        "decoder_config": _codec_decoder(tiny=tiny, codebooks=4 if embedded else 16, codes=64 if embedded else 2048),
    }
    if not embedded:
        top |= {"encoder_valid_num_quantizers": 16, "encoder_config": _codec_encoder(tiny=tiny)}
    return top


def _codec_decoder(*, tiny: bool, codebooks: int, codes: int) -> Json:
    return {
        "attention_bias": False,
        "attention_dropout": 0.0,
        "hidden_act": "silu",
        "latent_dim": 32 if tiny else 1024,
        "codebook_dim": 32 if tiny else 512,
        "codebook_size": codes,
        "decoder_dim": 64 if tiny else 1536,
        "hidden_size": 32 if tiny else 512,
        "intermediate_size": 48 if tiny else 1024,
        "num_hidden_layers": 2 if tiny else 8,
        "num_attention_heads": 4 if tiny else 16,
        "num_key_value_heads": 4 if tiny else 16,
        "head_dim": 16 if tiny else 64,
        "rms_norm_eps": 1e-05,
        "rope_theta": 10000,
        "sliding_window": 72,
        "layer_scale_initial_scale": 0.01,
        "max_position_embeddings": 8000,
        "num_quantizers": codebooks,
        "num_semantic_quantizers": 1,
        "semantic_codebook_size": 4096,
        "upsample_rates": [8, 5, 4, 3],
        "upsampling_ratios": [2, 2],
        "vector_quantization_hidden_dimension": 32 if tiny else 512,
    }


def _codec_encoder(*, tiny: bool) -> Json:
    return {
        "_frame_rate": 12.5,
        "attention_bias": False,
        "audio_channels": 1,
        "codebook_dim": 16 if tiny else 256,
        "codebook_size": 2048,
        "compress": 2,
        "dilation_growth_rate": 2,
        "head_dim": 8 if tiny else 64,
        "hidden_act": "gelu",
        "hidden_size": 32 if tiny else 512,
        "intermediate_size": 64 if tiny else 2048,
        "kernel_size": 7,
        "last_kernel_size": 3,
        "layer_scale_initial_scale": 0.01,
        "max_position_embeddings": 8000,
        "norm_eps": 1e-05,
        "num_attention_heads": 4 if tiny else 8,
        "num_filters": 4 if tiny else 64,
        "num_hidden_layers": 2 if tiny else 8,
        "num_key_value_heads": 4 if tiny else 8,
        "num_quantizers": 32,
        "num_residual_layers": 1,
        "num_semantic_quantizers": 1,
        "pad_mode": "constant",
        "residual_kernel_size": 3,
        "rope_theta": 10000.0,
        "sampling_rate": 24000,
        "sliding_window": 250,
        "trim_right_ratio": 1.0,
        "upsample_groups": 32 if tiny else 512,
        "upsampling_ratios": [8, 6, 5, 4],
        "use_causal_conv": True,
        "use_conv_shortcut": False,
        "vector_quantization_hidden_dimension": 16 if tiny else 256,
    }
