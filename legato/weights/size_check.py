"""Compare the sizes in a checkpoint's JSON with its tensors, before modules of these sizes are built.

A number of layers or a width is a claim of `config.json`. Building modules takes time and memory by the claim, so every
claim is bounded by what the weight files hold: their number of tensors, and their largest dimension. Whether the
tensors fit exactly is checked afterwards, when the modules exist (`name_mapping.mismatches`). Holds no state.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields

from legato.config.model import (
    BpeTextConfig,
    CodecConfig,
    CodecDecoderConfig,
    CodecEncoderConfig,
    CodePredictorConfig,
    DurationConfig,
    ModelConfig,
    PhoneTextConfig,
    SpeakerEncoderConfig,
    TalkerConfig,
    TransformerConfig,
)
from legato.errors import ConfigError

Shapes = Mapping[str, tuple[int, ...]]
_Sizes = (
    TransformerConfig
    | TalkerConfig
    | BpeTextConfig
    | PhoneTextConfig
    | DurationConfig
    | CodePredictorConfig
    | SpeakerEncoderConfig
    | CodecDecoderConfig
    | CodecEncoderConfig
)

_COUNTS = {
    "num_hidden_layers": "num_hidden_layers",
    "num_codebooks": "num_code_groups",
    "feedback_codebooks": "feedback_codebooks",
    "tables": "tables",
    "num_layers": "num_layers",
    "num_quantizers": "num_quantizers",
    "valid_quantizers": "encoder_valid_num_quantizers",
}
"""Fields that are numbers of modules -> their keys. Each module has tensors of its own."""
_WIDTHS = (
    *("vocab_size", "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim"),
    *("text_vocab_size", "text_hidden_size", "codebook_size", "codebook_dim", "latent_dim", "decoder_dim", "enc_dim"),
    *("upsampling_ratios", "upsample_rates", "kernel_size", "last_kernel_size", "residual_kernel_size"),
    *("num_filters", "compress"),
)
"""Fields that are dimensions of tensors, or divide one; the keys have the same names."""


def check_main_sizes(config: ModelConfig, shapes: Shapes) -> None:
    """`ConfigError` with the key if talker, code predictor, speaker encoder or durations exceed the main weights."""
    talker, predictor, where = config.talker, config.code_predictor, "config.json: talker_config"
    _check(where, talker, shapes)
    _check(where, talker.stack, shapes)
    if isinstance(talker.text, PhoneTextConfig):
        _check(f"{where}.text_track", talker.text, shapes)
        _check(f"{where}.text_track.duration", talker.text.duration, shapes)
    else:
        _check(where, talker.text, shapes)
    _check(f"{where}.code_predictor_config", predictor.stack, shapes)
    if config.speaker_encoder is not None:
        _check("config.json: speaker_encoder_config", config.speaker_encoder, shapes)


def check_codec_sizes(config: CodecConfig, shapes: Shapes) -> None:
    """The same for the speech tokenizer and its weights."""
    _check("speech_tokenizer/config.json: decoder_config", config.decoder, shapes)
    if config.encoder is not None:
        _check("speech_tokenizer/config.json: encoder_config", config.encoder, shapes)


def _check(where: str, sizes: _Sizes, shapes: Shapes) -> None:
    largest = max((max(shape) for shape in shapes.values() if shape and min(shape) > 0), default=0)
    for field in fields(sizes):
        value = getattr(sizes, field.name)
        claimed = max(value) if field.name in ("upsampling_ratios", "upsample_rates") else value
        if field.name in _COUNTS and claimed > len(shapes):
            key, bound = _COUNTS[field.name], f"its weights have {len(shapes)} tensors"
        elif field.name in _WIDTHS and claimed > largest:
            key, bound = field.name, f"no dimension of its weights exceeds {largest}"
        else:
            continue
        message = f"{where}.{key} is {claimed}, but {bound}: configuration and weights do not belong together"
        raise ConfigError(message, field=f"{where}.{key}")
