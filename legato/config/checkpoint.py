"""Read a checkpoint's JSON files into a `ModelConfig`. No other module reads the official model keys.

Keys that the computation needs are required and typed. A switch with an unsupported value is an error that names the
key. All other keys (leftovers of the training framework, additions of fine-tuning tools) are ignored. The class
defaults of the official package are wrong for the released models, so a missing size or id is an error.
"""

from __future__ import annotations

from pathlib import Path

from legato.config.codec_checkpoint import MAX_RATE_HZ, TOKENIZER_TYPE, codec_location, read_codec_config
from legato.config.foreign_checkpoints import describe_family, describe_folder
from legato.config.json_reader import Section, read_json
from legato.config.model import (
    BpeTextConfig,
    CodecConfig,
    CodecIds,
    CodePredictorConfig,
    DurationConfig,
    GenerationDefaults,
    LanguageIds,
    ModelConfig,
    PhoneTextConfig,
    SpeakerEncoderConfig,
    TalkerConfig,
    TransformerConfig,
)
from legato.config.quantization import KEY, METHOD, NONE, STORED
from legato.errors import CheckpointError, ConfigError, SamplingError
from legato.types import SamplingParams

KINDS = ("base", "custom_voice", "voice_design", "embedded")
FRONT_ENDS = ("english_phones",)
SPEAKER_RATE_HZ = 24_000
MAX_DELAY = 100
"""Most frames by which the audio of the embedded voice follows its text, and most phones that it looks ahead."""

_PLAIN = "the talker and the predictor have plain, full, causal attention"


def read_model_config(folder: Path, codec_folder: Path | None = None) -> ModelConfig:
    """Read the configuration of the checkpoint in `folder`.

    The speech tokenizer is read from `codec_folder` (see `codec_location`). Raises `CheckpointError` for a missing
    file and `ConfigError` with the key for a value that is missing, has the wrong type or is not supported.
    """
    folder = Path(folder)
    top = _read_top(folder)
    kind = top.string("tts_model_type")
    if kind not in KINDS:
        raise top.error("tts_model_type", f"one of {', '.join(KINDS)}")
    if top.string("tokenizer_type") != TOKENIZER_TYPE:
        raise top.error("tokenizer_type", f"{TOKENIZER_TYPE} (the 25 Hz models use another codec)")
    section = top.section("talker_config")
    text = _text(folder, top, section)
    talker = _talker(section, text, official=kind != "embedded")
    codec = read_codec_config(codec_location(folder, codec_folder))
    predictor = _code_predictor(section.section("code_predictor_config"), talker.num_codebooks)
    _check_codebooks(section, talker, predictor, codec)
    return ModelConfig(
        kind=kind,
        size=top.string("tts_model_size"),
        talker=talker,
        code_predictor=predictor,
        speaker_encoder=_speaker_encoder(top, section) if kind == "base" else None,
        codec=codec,
        generation=_generation(folder),
        quantization=_quantization(top),
    )


def _read_top(folder: Path) -> Section:
    """`config.json`. `CheckpointError` that says what the folder is instead, where that can be recognized."""
    path = folder / "config.json"
    if not path.is_file():
        found = describe_folder(folder)
        if found is not None:
            raise CheckpointError(f"{folder} is no checkpoint: {found}", field="model")
    top = read_json(path, "it describes the model; is this a checkpoint folder?")
    if not top.has("tts_model_type"):
        family = describe_family(top.values())
        if family is not None:
            raise CheckpointError(
                f"{folder} is a {family} model, not Qwen3-TTS: its config.json has no tts_model_type", field="model"
            )
    return top


def _quantization(top: Section) -> str:
    """Storage format of the weights: `NONE`, or a mode written by `legato quantize`."""
    if not top.has(KEY):
        return NONE
    stored = top.section(KEY)
    if stored.string("quant_method") != METHOD:
        raise stored.error("quant_method", f"{METHOD}; use the unquantized checkpoint and `legato quantize`")
    mode = stored.string("mode")
    if mode not in STORED:
        raise stored.error("mode", f"one of {', '.join(STORED)}")
    return mode


# --- talker ----------------------------------------------------------------------------------------------------------


def _talker(section: Section, text: BpeTextConfig | PhoneTextConfig, *, official: bool) -> TalkerConfig:
    vocab_size = section.integer("vocab_size")
    languages = section.ids("codec_language_id", below=vocab_size)
    num_codebooks = section.integer("num_code_groups", at_least=2)
    feedback = num_codebooks
    if isinstance(text, PhoneTextConfig):
        feedback = section.integer("feedback_codebooks")
        if feedback > num_codebooks:
            raise section.error("feedback_codebooks", f"at most num_code_groups ({num_codebooks})")
    speakers = section.ids("spk_id", below=vocab_size)
    section.expect("tie_word_embeddings", (False,), "the talker's head has its own weights")
    return TalkerConfig(
        stack=_stack(section),
        vocab_size=vocab_size,
        num_codebooks=num_codebooks,
        feedback_codebooks=feedback,
        text=text,
        ids=CodecIds(
            pad=_id(section, "codec_pad_id", vocab_size),
            bos=_id(section, "codec_bos_id", vocab_size),
            eos=_id(section, "codec_eos_token_id", vocab_size),
        ),
        language_ids=_language_ids(section, languages, vocab_size) if official else None,
        speakers=speakers,
        dialects=_dialects(section, speakers, languages) if official else {},
    )


def _language_ids(section: Section, languages: dict[str, int], vocab_size: int) -> LanguageIds:
    return LanguageIds(
        think=_id(section, "codec_think_id", vocab_size),
        nothink=_id(section, "codec_nothink_id", vocab_size),
        think_bos=_id(section, "codec_think_bos_id", vocab_size),
        think_eos=_id(section, "codec_think_eos_id", vocab_size),
        languages=languages,
    )


def _dialects(section: Section, speakers: dict[str, int], languages: dict[str, int]) -> dict[str, str]:
    """Read `spk_is_dialect`: false or a dialect's language name for each speaker in `spk_id`; missing means false."""
    table = section.section("spk_is_dialect")
    dialects: dict[str, str] = {}
    for speaker in table.names():
        value = table.value(speaker)
        if value is False or speaker.lower() not in speakers:  # fine-tuning scripts leave entries of removed speakers
            continue
        if not isinstance(value, str) or value.lower() not in languages:
            raise table.error(speaker, "false or the name of a language in codec_language_id")
        dialects[speaker.lower()] = value.lower()
    return dialects


def _id(section: Section, key: str, vocab_size: int) -> int:
    number = section.integer(key, at_least=0)
    if number >= vocab_size:
        raise section.error(key, f"a row of the codec embedding, below vocab_size ({vocab_size})")
    return number


def _stack(section: Section) -> TransformerConfig:
    """Read a transformer stack. Switches that would change the computation of a layer must have the supported value."""
    section.expect("hidden_act", ("silu",), "the MLP is SwiGLU with silu")
    section.expect("attention_bias", (False,), "q, k, v and o have no bias")
    section.expect("use_sliding_window", (False,), _PLAIN)
    if section.value("use_sliding_window") is not False:  # if off, the window size has no effect
        section.expect("sliding_window", (), _PLAIN)
    layer_types = section.value("layer_types")
    if layer_types is not None and not (
        isinstance(layer_types, list) and all(kind == "full_attention" for kind in layer_types)
    ):
        raise section.error("layer_types", f"all full_attention: {_PLAIN}")
    head_dim = section.integer("head_dim")
    _check_rope(section, head_dim)
    stack = TransformerConfig(
        hidden_size=section.integer("hidden_size"),
        intermediate_size=section.integer("intermediate_size"),
        num_hidden_layers=section.integer("num_hidden_layers"),
        num_attention_heads=section.integer("num_attention_heads"),
        num_key_value_heads=section.integer("num_key_value_heads"),
        head_dim=head_dim,
        rms_norm_eps=section.number("rms_norm_eps", at_most=1),
        rope_theta=section.number("rope_theta", at_least=1),
        max_position_embeddings=section.integer("max_position_embeddings"),
    )
    if stack.num_attention_heads % stack.num_key_value_heads:
        raise section.error("num_key_value_heads", f"a divisor of num_attention_heads ({stack.num_attention_heads})")
    if head_dim % 2:
        raise section.error("head_dim", "even, because RoPE rotates pairs")
    return stack


def _check_rope(section: Section, head_dim: int) -> None:
    """Check that positions are plain RoPE: no scaling, or the interleaved three-section form, whose rows are equal."""
    section.expect("rope_parameters", (), "use rope_theta and rope_scaling, as the official files do")
    if not section.has("rope_scaling"):
        return
    rope = section.section("rope_scaling")
    why = "positions are plain 1-D RoPE (the three rows of the interleaved form are always equal)"
    for key in ("rope_type", "type"):
        rope.expect(key, ("default",), why)
    rope.expect("interleaved", (True,), why)
    unknown = set(rope.names()) - {"rope_type", "type", "interleaved", "mrope_section"}
    for key in sorted(unknown):
        rope.expect(key, (), why)
    if rope.has("mrope_section") and sum(rope.integers("mrope_section")) != head_dim // 2:
        raise rope.error("mrope_section", f"three sections that sum to half of head_dim ({head_dim // 2})")


def _code_predictor(section: Section, num_codebooks: int) -> CodePredictorConfig:
    section.expect("tie_word_embeddings", (False,), "each head of the code predictor has its own weights")
    section.expect("num_code_groups", (num_codebooks,), f"the talker's num_code_groups is {num_codebooks}")
    return CodePredictorConfig(
        stack=_stack(section), codebook_size=section.integer("vocab_size"), num_codebooks=num_codebooks
    )


def _speaker_encoder(top: Section, talker: Section) -> SpeakerEncoderConfig:
    section = top.section("speaker_encoder_config")
    if section.integer("enc_dim") != talker.integer("hidden_size"):
        raise section.error("enc_dim", f"the talker's hidden_size ({talker.integer('hidden_size')})")
    rate_hz = section.integer("sample_rate", at_most=MAX_RATE_HZ)
    section.expect("sample_rate", (SPEAKER_RATE_HZ,), "the speaker encoder has filters for this sample rate")
    return SpeakerEncoderConfig(enc_dim=section.integer("enc_dim"), sample_rate_hz=rate_hz)


# --- text ------------------------------------------------------------------------------------------------------------


def _text(folder: Path, top: Section, talker: Section) -> BpeTextConfig | PhoneTextConfig:
    """Read the text configuration: phones if talker_config has `text_track`, else BPE."""
    if talker.has("text_track"):
        return _phone_text(talker.section("text_track"))
    vocab_size = talker.integer("text_vocab_size")
    vocabulary = read_json(folder / "vocab.json", "it is the text tokenizer's vocabulary")
    return BpeTextConfig(
        text_vocab_size=vocab_size,
        text_hidden_size=talker.integer("text_hidden_size"),
        pad_id=_id(top, "tts_pad_token_id", vocab_size),
        bos_id=_id(top, "tts_bos_token_id", vocab_size),
        eos_id=_id(top, "tts_eos_token_id", vocab_size),
        im_start_id=_id(top, "im_start_token_id", vocab_size),
        im_end_id=_id(top, "im_end_token_id", vocab_size),
        assistant_id=_id(vocabulary, "assistant", vocab_size),
        newline_id=_id(vocabulary, "\u010a", vocab_size),  # the newline byte in byte-level BPE
    )


def _phone_text(section: Section) -> PhoneTextConfig:
    front_end = section.string("front_end")
    if front_end not in FRONT_ENDS:
        raise section.error("front_end", f"one of {', '.join(FRONT_ENDS)}")
    look_ahead = section.integer("look_ahead_phones", at_least=0, at_most=MAX_DELAY)
    return PhoneTextConfig(
        front_end=front_end,
        phones=section.strings("phones"),
        tables=section.integer("tables"),
        audio_delay_frames=section.integer("audio_delay_frames", at_least=0, at_most=MAX_DELAY),
        look_ahead_phones=look_ahead,
        duration=_durations(section, look_ahead),
    )


def _durations(text: Section, look_ahead: int) -> DurationConfig:
    """Sizes of the duration predictor. Every layer looks ahead by the same number of phones, less than its kernel."""
    section = text.section("duration")
    sizes = DurationConfig(
        hidden_size=section.integer("hidden_size"),
        num_layers=section.integer("num_layers"),
        kernel_size=section.integer("kernel_size"),
    )
    per_layer, rest = divmod(look_ahead, sizes.num_layers)
    if rest:
        raise text.error("look_ahead_phones", f"a multiple of duration.num_layers ({sizes.num_layers})")
    if per_layer >= sizes.kernel_size:
        raise section.error("kernel_size", f"above the {per_layer} phones that each layer looks ahead")
    return sizes


# --- consistency ------------------------------------------------------------------------------------------------------


def _check_codebooks(
    section: Section, talker: TalkerConfig, predictor: CodePredictorConfig, codec: CodecConfig
) -> None:
    """Check that codebook sizes agree and that the talker's special ids are not codec codes."""
    if codec.decoder.num_quantizers != talker.num_codebooks:
        raise section.error("num_code_groups", f"the codec's num_quantizers ({codec.decoder.num_quantizers})")
    size = codec.decoder.codebook_size
    if predictor.codebook_size != size:
        raise section.error("code_predictor_config", f"of vocab_size {size}, the codec's codebook_size")
    for name, number in (("codec_pad_id", talker.ids.pad), ("codec_bos_id", talker.ids.bos)):
        if number < size:
            raise section.error(name, f"an id above the codes (0..{size - 1})")
    if talker.ids.eos < size:
        raise section.error("codec_eos_token_id", f"an id above the codes (0..{size - 1})")


# --- generation ------------------------------------------------------------------------------------------------------


def _generation(folder: Path) -> GenerationDefaults:
    """Read the sampling defaults. `do_sample: false` (greedy) becomes temperature 0."""
    section = read_json(
        folder / "generation_config.json",
        "it has the sampling defaults of the model; copy it from the official checkpoint",
    )
    predictor_greedy = not section.boolean("subtalker_dosample")
    try:
        sampling = SamplingParams(
            temperature=section.number("temperature") if section.boolean("do_sample") else 0.0,
            top_k=section.integer("top_k", at_least=0),
            top_p=section.number("top_p"),
            repetition_penalty=section.number("repetition_penalty"),
            predictor_temperature=0.0 if predictor_greedy else section.number("subtalker_temperature"),
            predictor_top_k=section.integer("subtalker_top_k", at_least=0),
            predictor_top_p=section.number("subtalker_top_p"),
        )
    except SamplingError as error:
        raise ConfigError(f"{folder / 'generation_config.json'}: {error}", field=error.field) from error
    return GenerationDefaults(sampling, max_new_tokens=section.integer("max_new_tokens"))
