"""JSON files of random checkpoints: all official kinds and tiny ones for tests, with the official fields and ids.

Plain data; `random_tensors.py` derives the tensors from it.
"""

from __future__ import annotations

from dataclasses import dataclass

from legato.text.english.phones import INVENTORY
from legato.weights.random_codec_config import Json, codec_json

CODEC_IDS = {
    "codec_pad_id": 2148,
    "codec_bos_id": 2149,
    "codec_eos_token_id": 2150,
    "codec_think_id": 2154,
    "codec_nothink_id": 2155,
    "codec_think_bos_id": 2156,
    "codec_think_eos_id": 2157,
}
LANGUAGES = {
    "chinese": 2055,
    "english": 2050,
    "german": 2053,
    "italian": 2070,
    "portuguese": 2071,
    "spanish": 2054,
    "japanese": 2058,
    "korean": 2064,
    "french": 2061,
    "russian": 2069,
}
DIALECTS = {"sichuan_dialect": 2062, "beijing_dialect": 2074}
SPEAKERS = {
    "serena": 3066,
    "vivian": 3065,
    "uncle_fu": 3010,
    "ryan": 3061,
    "aiden": 2861,
    "ono_anna": 2873,
    "sohee": 2864,
    "eric": 2875,
    "dylan": 2878,
}
SPEAKER_DIALECTS = {"eric": "sichuan_dialect", "dylan": "beijing_dialect"}


@dataclass(frozen=True, slots=True)
class _Sizes:
    """Sizes of a model: the official ones, or tiny."""

    name: str
    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    text_hidden: int
    predictor_hidden: int
    predictor_intermediate: int
    predictor_layers: int


_SIZES = {
    "0.6B": _Sizes("0b6", 1024, 3072, 28, 16, 8, 128, 2048, 1024, 3072, 5),
    "1.7B": _Sizes("1b7", 2048, 6144, 28, 16, 8, 128, 2048, 1024, 3072, 5),
    "tiny": _Sizes("0b6", 64, 96, 2, 4, 2, 16, 32, 64, 96, 2),
    "tiny-wide": _Sizes("1b7", 64, 96, 2, 4, 2, 16, 32, 32, 96, 2),
}

_KINDS = {
    "0.6B-Base": ("0.6B", "base"),
    "0.6B-CustomVoice": ("0.6B", "custom_voice"),
    "1.7B-Base": ("1.7B", "base"),
    "1.7B-CustomVoice": ("1.7B", "custom_voice"),
    "1.7B-VoiceDesign": ("1.7B", "voice_design"),
    "tiny-base": ("tiny", "base"),
    "tiny-base-wide": ("tiny-wide", "base"),
    "tiny-custom-voice": ("tiny", "custom_voice"),
    "tiny-custom-voice-wide": ("tiny-wide", "custom_voice"),
    "tiny-voice-design": ("tiny-wide", "voice_design"),
    "tiny-embedded": ("tiny", "embedded"),
}
CHECKPOINT_KINDS = tuple(_KINDS)
"""Kinds that `write_checkpoint` can write. In "wide" tiny ones the talker is wider than the predictor, as in 1.7B."""


@dataclass(frozen=True, slots=True)
class CheckpointJson:
    """The JSON files of one checkpoint. `codec_preprocessor` is for other programs; Legato does not read it."""

    config: Json
    generation: Json
    codec: Json
    codec_preprocessor: Json
    has_tokenizer: bool


def checkpoint_json(name: str) -> CheckpointJson:
    """The JSON files of a kind in `CHECKPOINT_KINDS`; `KeyError` for others."""
    size, kind = _KINDS[name]
    tiny = size.startswith("tiny")
    embedded = kind == "embedded"
    return CheckpointJson(
        config=_embedded_config(_SIZES[size]) if embedded else _official_config(_SIZES[size], kind),
        generation=_generation(),
        codec=codec_json(tiny=tiny, embedded=embedded),
        codec_preprocessor={
            "feature_extractor_type": "EncodecFeatureExtractor",
            "feature_size": 1,
            "sampling_rate": 24000,
            "padding_side": "right",
            "padding_value": 0.0,
            "return_attention_mask": True,
        },
        has_tokenizer=not embedded,
    )


def _official_config(sizes: _Sizes, kind: str) -> Json:
    custom = kind == "custom_voice"
    talker = {
        **_stack(sizes.hidden, sizes.intermediate, sizes.layers, sizes, 32768),
        "model_type": "qwen3_tts_talker",
        "code_predictor_config": _predictor(sizes, 2048, 16),
        **CODEC_IDS,
        "codec_language_id": LANGUAGES | DIALECTS if custom else LANGUAGES,
        "spk_id": SPEAKERS if custom else {},
        "spk_is_dialect": {name: SPEAKER_DIALECTS.get(name, False) for name in SPEAKERS} if custom else {},
        "num_code_groups": 16,
        "position_id_per_seconds": 13,
        "rope_scaling": {
            "interleaved": True,
            "mrope_section": _sections(sizes.head_dim),
            "rope_type": "default",
            "type": "default",
        },
        "text_hidden_size": sizes.text_hidden,
        "text_vocab_size": 151936,
        "vocab_size": 3072,
    }
    encoder = {"speaker_encoder_config": {"enc_dim": sizes.hidden, "sample_rate": 24000}} if kind == "base" else {}
    return {
        "architectures": ["Qwen3TTSForConditionalGeneration"],
        "model_type": "qwen3_tts",
        "tokenizer_type": "qwen3_tts_tokenizer_12hz",
        "tts_model_size": sizes.name,
        "tts_model_type": kind,
        "assistant_token_id": 77091,
        "im_start_token_id": 151644,
        "im_end_token_id": 151645,
        "tts_pad_token_id": 151671,
        "tts_bos_token_id": 151672,
        "tts_eos_token_id": 151673,
        **encoder,
        "talker_config": talker,
        "transformers_version": "4.57.3",
    }


def _embedded_config(sizes: _Sizes) -> Json:
    """A tiny model like the embedded voice: phones instead of BPE, four codebooks of which one is fed back."""
    talker = {
        **_stack(sizes.hidden, sizes.intermediate, sizes.layers, sizes, 2048),
        "code_predictor_config": _predictor(sizes, 64, 4),
        "codec_pad_id": 64,
        "codec_bos_id": 65,
        "codec_eos_token_id": 66,
        "codec_language_id": {},
        "spk_id": {"one": 67, "two": 68},
        "num_code_groups": 4,
        "feedback_codebooks": 1,
        "vocab_size": 72,
        "text_track": {
            "front_end": "english_phones",
            "phones": list(INVENTORY),
            "tables": 4,
            "audio_delay_frames": 3,
            "look_ahead_phones": 6,
            "duration": {"hidden_size": 16, "num_layers": 3, "kernel_size": 7},
        },
    }
    return {
        "model_type": "legato_embedded",
        "tokenizer_type": "qwen3_tts_tokenizer_12hz",
        "tts_model_size": "tiny",
        "tts_model_type": "embedded",
        "talker_config": talker,
    }


def _stack(hidden: int, intermediate: int, layers: int, sizes: _Sizes, positions: int) -> Json:
    return {
        "attention_bias": False,
        "attention_dropout": 0,
        "hidden_act": "silu",
        "hidden_size": hidden,
        "intermediate_size": intermediate,
        "num_hidden_layers": layers,
        "num_attention_heads": sizes.heads,
        "num_key_value_heads": sizes.kv_heads,
        "head_dim": sizes.head_dim,
        "rms_norm_eps": 1e-06,
        "rope_theta": 1000000,
        "rope_scaling": None,
        "max_position_embeddings": positions,
        "sliding_window": None,
        "use_sliding_window": False,
        "use_cache": True,
        "initializer_range": 0.02,
    }


def _predictor(sizes: _Sizes, codes: int, codebooks: int) -> Json:
    return {
        **_stack(sizes.predictor_hidden, sizes.predictor_intermediate, sizes.predictor_layers, sizes, 65536),
        "model_type": "qwen3_tts_talker_code_predictor",
        "layer_types": ["full_attention"] * sizes.predictor_layers,
        "num_code_groups": codebooks,
        "tie_word_embeddings": False,
        "vocab_size": codes,
    }


def _sections(head_dim: int) -> list[int]:
    """M-RoPE sections: the official [24, 20, 20] at head_dim 128, scaled for others; their sum is half of head_dim."""
    side = 5 * head_dim // 32
    return [head_dim // 2 - 2 * side, side, side]


def _generation() -> Json:
    return {
        "do_sample": True,
        "repetition_penalty": 1.05,
        "temperature": 0.9,
        "top_p": 1.0,
        "top_k": 50,
        "subtalker_dosample": True,
        "subtalker_temperature": 0.9,
        "subtalker_top_p": 1.0,
        "subtalker_top_k": 50,
        "max_new_tokens": 8192,
    }
