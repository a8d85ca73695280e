"""What a checkpoint computes, as frozen typed values. Read from its JSON by `config/checkpoint.py` alone.

Owns no defaults: class defaults of the official package are wrong for the released models, so every value that the
computation needs comes from the checkpoint.
"""

from __future__ import annotations

from dataclasses import dataclass

from legato.config.quantization import NONE


@dataclass(frozen=True, slots=True)
class TransformerConfig:
    """A stack of pre-norm decoder layers: GQA with per-head q/k RMSNorm, rotate-half RoPE, SwiGLU."""

    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rms_norm_eps: float
    rope_theta: float
    max_position_embeddings: int


@dataclass(frozen=True, slots=True)
class BpeTextConfig:
    """Text side of the official models: one BPE id a position, embedded and projected to the talker's width.

    `im_start_id`, `assistant_id`, `newline_id` are the role block that opens every prompt.
    """

    text_vocab_size: int
    text_hidden_size: int
    pad_id: int
    bos_id: int
    eos_id: int
    im_start_id: int
    im_end_id: int
    assistant_id: int
    newline_id: int


@dataclass(frozen=True, slots=True)
class DurationConfig:
    """Sizes of the embedded voice's duration net."""

    hidden_size: int
    num_layers: int
    kernel_size: int


@dataclass(frozen=True, slots=True)
class PhoneTextConfig:
    """Text side of the embedded voice: one phone id for each table (a quarter of a frame each), embeddings summed."""

    front_end: str
    phones: tuple[str, ...]
    tables: int
    audio_delay_frames: int
    look_ahead_phones: int
    duration: DurationConfig


TextConfig = BpeTextConfig | PhoneTextConfig


@dataclass(frozen=True, slots=True)
class CodecIds:
    """Rows of the talker's codec embedding that are not codes. The think/nothink ids exist in official models alone."""

    pad: int
    bos: int
    eos: int


@dataclass(frozen=True, slots=True)
class LanguageIds:
    """Language tags of the official models; `languages` maps lower-case names to ids, dialects included."""

    think: int
    nothink: int
    think_bos: int
    think_eos: int
    languages: dict[str, int]


@dataclass(frozen=True, slots=True)
class TalkerConfig:
    """The talker: `stack`, its codec vocabulary, its text side and its tables of speakers and languages.

    `num_codebooks` are the codes of a frame; the first `feedback_codebooks` of them are summed into the next input (all
    of them in the official models). `speakers` maps lower-case names to rows; `dialects` maps a speaker to its
    dialect's language name. `language_ids` is None where the model has no language tag (the embedded voice).
    """

    stack: TransformerConfig
    vocab_size: int
    num_codebooks: int
    feedback_codebooks: int
    text: TextConfig
    ids: CodecIds
    language_ids: LanguageIds | None
    speakers: dict[str, int]
    dialects: dict[str, str]


@dataclass(frozen=True, slots=True)
class CodePredictorConfig:
    """The code predictor; `codebook_size` codes in each residual codebook."""

    stack: TransformerConfig
    codebook_size: int
    num_codebooks: int


@dataclass(frozen=True, slots=True)
class SpeakerEncoderConfig:
    """ECAPA-TDNN of Base checkpoints; sizes other than the output width are fixed by the architecture."""

    enc_dim: int
    sample_rate_hz: int


@dataclass(frozen=True, slots=True)
class CodecDecoderConfig:
    """Codes -> samples, in the official module graph."""

    num_quantizers: int
    num_semantic_quantizers: int
    codebook_size: int
    codebook_dim: int
    latent_dim: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rms_norm_eps: float
    rope_theta: float
    attention_window: int
    decoder_dim: int
    upsampling_ratios: tuple[int, ...]
    upsample_rates: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CodecEncoderConfig:
    """Samples -> codes (Mimi). `num_quantizers` stored levels, of which `valid_quantizers` are computed."""

    num_filters: int
    kernel_size: int
    last_kernel_size: int
    residual_kernel_size: int
    num_residual_layers: int
    compress: int
    dilation_growth_rate: int
    upsampling_ratios: tuple[int, ...]
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    intermediate_size: int
    norm_eps: float
    rope_theta: float
    num_quantizers: int
    num_semantic_quantizers: int
    valid_quantizers: int
    codebook_size: int
    codebook_dim: int


@dataclass(frozen=True, slots=True)
class CodecConfig:
    """The speech tokenizer. `encoder` is None where the checkpoint has no encoder (the embedded voice)."""

    sample_rate_hz: int
    frame_samples: int
    decoder: CodecDecoderConfig
    encoder: CodecEncoderConfig | None


@dataclass(frozen=True, slots=True)
class GenerationDefaults:
    """`generation_config.json`: how the checkpoint's makers draw codes."""

    temperature: float
    top_k: int
    top_p: float
    repetition_penalty: float
    predictor_temperature: float
    predictor_top_k: int
    predictor_top_p: float
    max_new_tokens: int


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """One checkpoint. `kind` is `base`, `custom_voice`, `voice_design` or `embedded`; `size` as the file says it.

    `quantization`: how talker and code predictor are stored, a mode of `config.quantization`.
    """

    kind: str
    size: str
    talker: TalkerConfig
    code_predictor: CodePredictorConfig
    speaker_encoder: SpeakerEncoderConfig | None
    codec: CodecConfig
    generation: GenerationDefaults
    quantization: str = NONE
