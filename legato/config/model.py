"""Model configuration as frozen dataclasses, read from a checkpoint by `config/checkpoint.py`.

There are no defaults: the class defaults of the official package are wrong for the released models, so all values
come from the checkpoint.
"""

from __future__ import annotations

from dataclasses import dataclass

from legato.config.quantization import NONE
from legato.types import SamplingParams


@dataclass(frozen=True, slots=True)
class TransformerConfig:
    """A stack of pre-norm transformer layers: GQA with per-head q/k RMSNorm, rotate-half RoPE, SwiGLU."""

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
    """Text input of the official models: one BPE id per position, embedded and projected to the talker's hidden size.

    `im_start_id`, `assistant_id` and `newline_id` form the role block at the start of every prompt.
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
    """Sizes of the embedded voice's duration predictor."""

    hidden_size: int
    num_layers: int
    kernel_size: int


@dataclass(frozen=True, slots=True)
class PhoneTextConfig:
    """Text input of the embedded voice: `tables` phone ids per position (one per quarter frame), embeddings summed."""

    front_end: str
    phones: tuple[str, ...]
    tables: int
    audio_delay_frames: int
    look_ahead_phones: int
    duration: DurationConfig


TextConfig = BpeTextConfig | PhoneTextConfig


@dataclass(frozen=True, slots=True)
class CodecIds:
    """Special rows of the talker's codec embedding that all models have (see also `LanguageIds`)."""

    pad: int
    bos: int
    eos: int


@dataclass(frozen=True, slots=True)
class LanguageIds:
    """Language tag ids of the official models. `languages` maps lower-case names to ids and includes dialects."""

    think: int
    nothink: int
    think_bos: int
    think_eos: int
    languages: dict[str, int]


@dataclass(frozen=True, slots=True)
class TalkerConfig:
    """The talker: transformer stack, codec vocabulary, text input, speakers and languages.

    `num_codebooks`: codes per frame. The embeddings of the first `feedback_codebooks` are summed into the next input
    (all of them in the official models). `speakers` maps lower-case names to codec embedding rows, `dialects` maps
    speakers to language names. `language_ids` is `None` if the model has no language tag (embedded voice).
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
    """The code predictor. `codebook_size`: codes per residual codebook."""

    stack: TransformerConfig
    codebook_size: int
    num_codebooks: int


@dataclass(frozen=True, slots=True)
class SpeakerEncoderConfig:
    """ECAPA-TDNN speaker encoder of Base checkpoints. All other sizes are fixed by the architecture."""

    enc_dim: int
    sample_rate_hz: int


@dataclass(frozen=True, slots=True)
class CodecDecoderConfig:
    """Codec decoder: codes to samples."""

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
    """Codec encoder (Mimi): samples to codes. Only the first `valid_quantizers` of `num_quantizers` are computed."""

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
    """The speech tokenizer. `encoder` is `None` if the checkpoint has none (embedded voice)."""

    sample_rate_hz: int
    frame_samples: int
    decoder: CodecDecoderConfig
    encoder: CodecEncoderConfig | None


@dataclass(frozen=True, slots=True)
class GenerationDefaults:
    """Sampling parameters and length limit from `generation_config.json`."""

    sampling: SamplingParams
    max_new_tokens: int


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """One checkpoint.

    `kind`: `base`, `custom_voice`, `voice_design` or `embedded`. `size`: `tts_model_size` as in the file.
    `quantization`: storage mode of talker and code predictor (see `config/quantization.py`).
    """

    kind: str
    size: str
    talker: TalkerConfig
    code_predictor: CodePredictorConfig
    speaker_encoder: SpeakerEncoderConfig | None
    codec: CodecConfig
    generation: GenerationDefaults
    quantization: str = NONE
