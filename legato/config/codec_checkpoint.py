"""Locate a checkpoint's speech tokenizer and read its JSON into a `CodecConfig`.

The rules of `checkpoint.py` apply: sizes are required, unsupported switches are errors, other keys are ignored.
"""

from __future__ import annotations

from math import prod
from pathlib import Path

from legato.config.json_reader import Section, read_json
from legato.config.model import CodecConfig, CodecDecoderConfig, CodecEncoderConfig
from legato.errors import CheckpointError

TOKENIZER_TYPE = "qwen3_tts_tokenizer_12hz"
CODEC_FOLDER = "speech_tokenizer"
MAX_RATE_HZ = 192_000
"""Highest sample rate."""
MAX_WINDOW = 1024
"""Most frames in the attention window of the codec decoder; the official window has 72. Every stream keeps them."""
MAX_DILATION = 8
"""Largest growth of the dilation from one residual block of the encoder to the next; officially 2."""
MAX_RESIDUAL_LAYERS = 4
"""Most residual blocks at one sample rate of the encoder; officially 1."""


def codec_location(folder: Path, codec_folder: Path | None = None) -> Path:
    """Path of the speech tokenizer of `folder`: `codec_folder` if given, else a subfolder or sibling of `folder`.

    Siblings are ``speech_tokenizer`` and ``Qwen3-TTS-Tokenizer-12Hz`` in the parent folder. Raises `CheckpointError`
    with all paths that were tried.
    """
    if codec_folder is not None:
        candidates = [codec_folder, codec_folder / CODEC_FOLDER]
    else:
        parent = folder.resolve().parent
        candidates = [folder / CODEC_FOLDER, parent / CODEC_FOLDER, parent / "Qwen3-TTS-Tokenizer-12Hz"]
    for path in candidates:
        if (path / "config.json").is_file() and read_json(path / "config.json", "").has("decoder_config"):
            return path
    tried = ", ".join(str(path) for path in candidates)
    raise CheckpointError(
        f"no speech tokenizer (config.json with a decoder_config) in {tried}: "
        "copy the speech_tokenizer folder of any official 12 Hz checkpoint into the checkpoint folder, "
        "or specify its path",
        field=CODEC_FOLDER,
    )


def read_codec_config(folder: Path) -> CodecConfig:
    """Read the configuration of the speech tokenizer in `folder`. Raises like `read_model_config`."""
    top = read_json(folder / "config.json", "it describes the speech tokenizer")
    top.expect("model_type", (TOKENIZER_TYPE,), "the 25 Hz models use another codec")
    rate = top.integer("output_sample_rate", at_most=MAX_RATE_HZ)
    frame = top.integer("decode_upsample_rate")
    decoder = _codec_decoder(top.section("decoder_config"))
    if prod(decoder.upsampling_ratios) * prod(decoder.upsample_rates) != frame:
        raise top.error("decode_upsample_rate", "the product of upsampling_ratios and upsample_rates")
    encoder = None
    if top.has("encoder_config"):
        top.expect("input_sample_rate", (rate,), f"references are encoded at the output sample rate ({rate})")
        top.expect("encode_downsample_rate", (frame,), f"encoder and decoder share one frame size ({frame} samples)")
        encoder = _codec_encoder(top, top.section("encoder_config"), decoder)
    return CodecConfig(sample_rate_hz=rate, frame_samples=frame, decoder=decoder, encoder=encoder)


def _codec_decoder(section: Section) -> CodecDecoderConfig:
    section.expect("hidden_act", ("silu",), "the MLP is SwiGLU with silu")
    section.expect("attention_bias", (False,), "q, k, v and o have no bias")
    section.expect("num_semantic_quantizers", (1,), "there is one semantic codebook")
    section.expect("rope_scaling", (), "positions are plain RoPE")
    return CodecDecoderConfig(
        num_quantizers=section.integer("num_quantizers", at_least=2),
        num_semantic_quantizers=section.integer("num_semantic_quantizers"),
        codebook_size=section.integer("codebook_size"),
        codebook_dim=section.integer("codebook_dim"),
        latent_dim=section.integer("latent_dim"),
        hidden_size=section.integer("hidden_size"),
        intermediate_size=section.integer("intermediate_size"),
        num_hidden_layers=section.integer("num_hidden_layers"),
        num_attention_heads=section.integer("num_attention_heads"),
        num_key_value_heads=section.integer("num_key_value_heads"),
        head_dim=section.integer("head_dim"),
        rms_norm_eps=section.number("rms_norm_eps", at_most=1),
        rope_theta=section.number("rope_theta", at_least=1),
        attention_window=section.integer("sliding_window", at_most=MAX_WINDOW),
        decoder_dim=section.integer("decoder_dim"),
        upsampling_ratios=section.integers("upsampling_ratios"),
        upsample_rates=section.integers("upsample_rates"),
    )


def _codec_encoder(top: Section, section: Section, decoder: CodecDecoderConfig) -> CodecEncoderConfig:
    _check_encoder(section)
    valid = top.integer("encoder_valid_num_quantizers", at_least=2)
    stored = section.integer("num_quantizers", at_least=2)
    if not valid == decoder.num_quantizers <= stored:
        raise top.error(
            "encoder_valid_num_quantizers",
            f"the decoder's num_quantizers ({decoder.num_quantizers}) and at most the encoder's ({stored})",
        )
    if section.integer("codebook_size") != decoder.codebook_size:
        raise section.error("codebook_size", f"the decoder's codebook_size ({decoder.codebook_size})")
    return CodecEncoderConfig(
        num_filters=section.integer("num_filters"),
        kernel_size=section.integer("kernel_size"),
        last_kernel_size=section.integer("last_kernel_size"),
        residual_kernel_size=section.integer("residual_kernel_size"),
        num_residual_layers=section.integer("num_residual_layers", at_most=MAX_RESIDUAL_LAYERS),
        compress=section.integer("compress"),
        dilation_growth_rate=section.integer("dilation_growth_rate", at_most=MAX_DILATION),
        upsampling_ratios=section.integers("upsampling_ratios"),
        hidden_size=section.integer("hidden_size"),
        num_hidden_layers=section.integer("num_hidden_layers"),
        num_attention_heads=section.integer("num_attention_heads"),
        num_key_value_heads=section.integer("num_key_value_heads"),
        head_dim=section.integer("head_dim"),
        intermediate_size=section.integer("intermediate_size"),
        norm_eps=section.number("norm_eps", at_most=1),
        rope_theta=section.number("rope_theta", at_least=1),
        num_quantizers=stored,
        num_semantic_quantizers=section.integer("num_semantic_quantizers"),
        valid_quantizers=valid,
        codebook_size=section.integer("codebook_size"),
        codebook_dim=section.integer("codebook_dim"),
    )


def _check_encoder(section: Section) -> None:
    section.expect("hidden_act", ("gelu",), "the encoder's MLP is exact GELU")
    section.expect("attention_bias", (False,), "q, k, v and o have no bias")
    section.expect("use_causal_conv", (True,), "the encoder is causal")
    section.expect("use_conv_shortcut", (False,), "the residual blocks have identity shortcuts")
    section.expect("pad_mode", ("constant",), "convolutions are padded with zeros")
    section.expect("num_semantic_quantizers", (1,), "there is one semantic codebook")
    section.expect("audio_channels", (1,), "references are mono")
    section.expect("rope_scaling", (), "positions are plain RoPE")
    if section.has("vector_quantization_hidden_dimension"):
        section.expect(
            "vector_quantization_hidden_dimension",
            (section.integer("codebook_dim"),),
            "the quantizer works in the codebook dimension",
        )
