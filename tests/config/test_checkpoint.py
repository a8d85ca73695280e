"""Reading a checkpoint's JSON: required keys, unsupported values, ignored keys, codec location."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from legato.config.checkpoint import read_model_config
from legato.config.codec_checkpoint import CODEC_FOLDER, codec_location
from legato.config.model import BpeTextConfig, PhoneTextConfig
from legato.errors import CheckpointError, ConfigError
from legato.weights.random_checkpoint import write_tokenizer
from legato.weights.random_configs import CHECKPOINT_KINDS, checkpoint_json
from tests.conftest import TinyCheckpoint

REQUIRED_FILES = ("config.json", "generation_config.json", "vocab.json")
Json = dict[str, object]
Edit = Callable[[Json], None]


@pytest.fixture(scope="session")
def tokenizer_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tokenizer")
    write_tokenizer(folder)
    return folder


def write_checkpoint_json(folder: Path, kind: str, tokenizer: Path, codec: Path | None = None) -> Path:
    """Write the JSON files of a checkpoint kind, without weights."""
    files = checkpoint_json(kind)
    codec = codec or folder / CODEC_FOLDER
    codec.mkdir(parents=True, exist_ok=True)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(files.config))
    (folder / "generation_config.json").write_text(json.dumps(files.generation))
    (codec / "config.json").write_text(json.dumps(files.codec))
    shutil.copy(tokenizer / "vocab.json", folder)
    return folder


def edit_json(folder: Path, file: str, edit: Edit) -> Path:
    values = json.loads((folder / file).read_text())
    edit(values)
    (folder / file).write_text(json.dumps(values))
    return folder


def at(values: Json, path: str) -> tuple[Json, str]:
    """Resolve a dotted path to the innermost object and its key."""
    *sections, key = path.split(".")
    for section in sections:
        inner = values[section]
        assert isinstance(inner, dict)
        values = inner
    return values, key


def setting(path: str, value: object) -> Edit:
    def edit(values: Json) -> None:
        section, key = at(values, path)
        section[key] = value

    return edit


def removing(path: str) -> Edit:
    def edit(values: Json) -> None:
        section, key = at(values, path)
        del section[key]

    return edit


@pytest.mark.parametrize("kind", CHECKPOINT_KINDS)
def test_reads_every_checkpoint_kind(kind: str, tmp_path: Path, tokenizer_folder: Path) -> None:
    config = read_model_config(write_checkpoint_json(tmp_path, kind, tokenizer_folder))
    assert config.talker.num_codebooks == config.codec.decoder.num_quantizers
    assert (config.speaker_encoder is None) == ("base" not in kind.lower())
    assert config.codec.frame_samples == 1920
    assert config.generation.max_new_tokens == 8192


def test_official_values(tmp_path: Path, tokenizer_folder: Path) -> None:
    config = read_model_config(write_checkpoint_json(tmp_path, "0.6B-CustomVoice", tokenizer_folder))
    talker, text = config.talker, config.talker.text
    assert isinstance(text, BpeTextConfig)
    assert (config.kind, config.size) == ("custom_voice", "0b6")
    assert (text.im_start_id, text.assistant_id, text.newline_id) == (151644, 77091, 198)
    assert (text.pad_id, text.bos_id, text.eos_id) == (151671, 151672, 151673)
    assert (talker.ids.pad, talker.ids.bos, talker.ids.eos) == (2148, 2149, 2150)
    assert talker.feedback_codebooks == talker.num_codebooks == 16
    assert talker.speakers["eric"] == 2875
    assert talker.dialects == {"eric": "sichuan_dialect", "dylan": "beijing_dialect"}
    assert talker.language_ids is not None
    assert talker.language_ids.languages["beijing_dialect"] == 2074
    assert (config.codec.decoder.attention_window, config.codec.decoder.hidden_size) == (72, 512)


def test_embedded_voice(tmp_path: Path, tokenizer_folder: Path) -> None:
    config = read_model_config(write_checkpoint_json(tmp_path, "tiny-embedded", tokenizer_folder))
    assert isinstance(config.talker.text, PhoneTextConfig)
    assert (config.talker.text.tables, config.talker.text.audio_delay_frames) == (4, 3)
    assert config.talker.feedback_codebooks == 1
    assert config.talker.language_ids is None
    assert config.codec.encoder is None


@pytest.mark.parametrize(
    "path",
    [
        "tts_model_type",
        "tokenizer_type",
        "tts_model_size",
        "tts_pad_token_id",
        "im_start_token_id",
        "speaker_encoder_config",
        "speaker_encoder_config.enc_dim",
        "talker_config.hidden_size",
        "talker_config.head_dim",
        "talker_config.num_code_groups",
        "talker_config.codec_eos_token_id",
        "talker_config.codec_think_id",
        "talker_config.spk_id",
        "talker_config.codec_language_id",
        "talker_config.text_vocab_size",
        "talker_config.vocab_size",
        "talker_config.rope_theta",
        "talker_config.code_predictor_config.hidden_size",
        "talker_config.code_predictor_config.vocab_size",
    ],
)
def test_required_keys_have_no_default(path: str, tmp_path: Path, tokenizer_folder: Path) -> None:
    """The end-of-speech id is read only from the nested section (docs/faults.md, R27)."""
    folder = edit_json(write_checkpoint_json(tmp_path, "tiny-base", tokenizer_folder), "config.json", removing(path))
    edit_json(folder, "config.json", setting("codec_eos_token_id", 2150))
    with pytest.raises(ConfigError, match=path.rsplit(".", 1)[-1]):
        read_model_config(folder)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("tokenizer_type", "qwen3_tts_tokenizer_25hz"),
        ("tts_model_type", "duplex"),
        ("quantization_config", {"bits": 4}),
        ("talker_config.attention_bias", True),
        ("talker_config.hidden_act", "gelu"),
        ("talker_config.use_sliding_window", True),
        ("talker_config.tie_word_embeddings", True),
        ("talker_config.rope_parameters", {"rope_theta": 5.0}),
        ("talker_config.rope_scaling.rope_type", "yarn"),
        ("talker_config.rope_scaling.interleaved", False),
        ("talker_config.rope_scaling.factor", 2.0),
        ("talker_config.rope_scaling.mrope_section", [4, 4, 4]),
        ("talker_config.num_key_value_heads", 3),
        ("talker_config.hidden_size", "64"),
        ("talker_config.hidden_size", 64.0),
        ("talker_config.hidden_size", True),
        ("talker_config.hidden_size", 0),
        ("talker_config.rms_norm_eps", "small"),
        ("talker_config.num_code_groups", 8),
        ("talker_config.codec_eos_token_id", 2000),
        ("talker_config.codec_bos_id", 3072),
        ("talker_config.spk_id", {"a": 5000}),
        ("talker_config.spk_id", {"a": 3000, "A": 3001}),
        ("talker_config.code_predictor_config.tie_word_embeddings", True),
        ("talker_config.code_predictor_config.layer_types", ["sliding_attention", "full_attention"]),
        ("talker_config.code_predictor_config.rope_scaling", {"rope_type": "linear"}),
        ("talker_config.code_predictor_config.num_code_groups", 8),
        ("talker_config.code_predictor_config.vocab_size", 4096),
        ("speaker_encoder_config.enc_dim", 65),
    ],
)
def test_unsupported_value_error_has_key(path: str, value: object, tmp_path: Path, tokenizer_folder: Path) -> None:
    folder = edit_json(
        write_checkpoint_json(tmp_path, "tiny-base", tokenizer_folder), "config.json", setting(path, value)
    )
    with pytest.raises(ConfigError) as caught:
        read_model_config(folder)
    assert any(part in str(caught.value) for part in path.split(".")[1:] or [path])


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("model_type", "qwen3_tts_tokenizer_25hz"),
        ("decode_upsample_rate", 1280),
        ("input_sample_rate", 16000),
        ("encoder_valid_num_quantizers", 8),
        ("decoder_config.hidden_act", "gelu"),
        ("decoder_config.sliding_window", None),
        ("decoder_config.num_semantic_quantizers", 2),
        ("encoder_config.use_causal_conv", False),
        ("encoder_config.pad_mode", "reflect"),
        ("encoder_config.vector_quantization_hidden_dimension", 64),
        ("encoder_config.codebook_size", 1024),
    ],
)
def test_unsupported_codec_value_error_has_key(
    path: str, value: object, tmp_path: Path, tokenizer_folder: Path
) -> None:
    folder = write_checkpoint_json(tmp_path, "tiny-base", tokenizer_folder)
    edit_json(folder / CODEC_FOLDER, "config.json", setting(path, value))
    with pytest.raises(ConfigError, match=path.rsplit(".", 1)[-1]):
        read_model_config(folder)


def test_unknown_keys_are_ignored(tmp_path: Path, tokenizer_folder: Path) -> None:
    folder = write_checkpoint_json(tmp_path, "tiny-custom-voice", tokenizer_folder)
    before = read_model_config(folder)

    def fine_tuned(values: Json) -> None:
        values |= {"torch_dtype": "bfloat16", "_name_or_path": "x", "peft": {"r": 8}, "transformers_version": "5.1"}
        section, _ = at(values, "talker_config.x")
        section |= {"attention_dropout": 0.1, "temperature": 3.0, "sliding_window": 4096, "top_k": 1, "eos_token_id": 7}

    assert read_model_config(edit_json(folder, "config.json", fine_tuned)) == before


def test_fine_tuned_speakers(tmp_path: Path, tokenizer_folder: Path) -> None:
    """Speaker id 3000, renamed and additional speakers, with or without an entry for their dialect."""
    folder = write_checkpoint_json(tmp_path, "tiny-custom-voice", tokenizer_folder)
    edit_json(folder, "config.json", setting("talker_config.spk_id", {"MyVoice": 3000, "ryan": 3061, "Li": 17}))
    dialects = {"MyVoice": False, "Li": "Beijing_Dialect", "removed": "sichuan_dialect", "old": "a removed language"}
    edit_json(folder, "config.json", setting("talker_config.spk_is_dialect", dialects))
    talker = read_model_config(folder).talker
    assert talker.speakers == {"myvoice": 3000, "ryan": 3061, "li": 17}
    assert talker.dialects == {"li": "beijing_dialect"}


def test_unknown_dialect_of_a_speaker_is_refused(tmp_path: Path, tokenizer_folder: Path) -> None:
    folder = write_checkpoint_json(tmp_path, "tiny-custom-voice", tokenizer_folder)
    edit_json(folder, "config.json", setting("talker_config.spk_is_dialect", {"ryan": "klingon"}))
    with pytest.raises(ConfigError, match=r"spk_is_dialect\.ryan"):
        read_model_config(folder)


def test_greedy_generation_is_temperature_zero(tmp_path: Path, tokenizer_folder: Path) -> None:
    folder = write_checkpoint_json(tmp_path, "tiny-base", tokenizer_folder)
    edit_json(folder, "generation_config.json", setting("do_sample", False))
    generation = read_model_config(folder).generation
    assert (generation.sampling.temperature, generation.sampling.predictor_temperature) == (0.0, 0.9)
    with pytest.raises(ConfigError, match="subtalker_top_k"):
        read_model_config(edit_json(folder, "generation_config.json", removing("subtalker_top_k")))


@pytest.mark.parametrize("file", REQUIRED_FILES)
def test_missing_file_error_has_file_name(file: str, tmp_path: Path, tokenizer_folder: Path) -> None:
    folder = write_checkpoint_json(tmp_path, "tiny-base", tokenizer_folder)
    (folder / file).unlink()
    with pytest.raises(CheckpointError, match=file):
        read_model_config(folder)


def test_invalid_json_error_has_file_name(tmp_path: Path, tokenizer_folder: Path) -> None:
    folder = write_checkpoint_json(tmp_path, "tiny-base", tokenizer_folder)
    (folder / "config.json").write_text("{")
    with pytest.raises(ConfigError, match=r"config\.json is not valid JSON"):
        read_model_config(folder)
    (folder / "config.json").write_text("[]")
    with pytest.raises(ConfigError, match="must hold a JSON object"):
        read_model_config(folder)


@pytest.mark.parametrize("name", [CODEC_FOLDER, "Qwen3-TTS-Tokenizer-12Hz"])
def test_codec_in_sibling_folder(name: str, tmp_path: Path, tokenizer_folder: Path) -> None:
    folder = write_checkpoint_json(tmp_path / "model", "tiny-base", tokenizer_folder, codec=tmp_path / name)
    assert codec_location(folder) == tmp_path / name
    assert read_model_config(folder).codec.encoder is not None


def test_codec_in_explicit_folder(tmp_path: Path, tokenizer_folder: Path) -> None:
    codec_folder = tmp_path / "elsewhere" / "codec"
    folder = write_checkpoint_json(tmp_path / "model", "tiny-base", tokenizer_folder, codec=codec_folder)
    with pytest.raises(CheckpointError, match="no speech tokenizer"):
        read_model_config(folder)
    assert read_model_config(folder, codec_folder).codec.frame_samples == 1920


def test_random_checkpoint_has_the_json_of_its_kind(tiny_checkpoint: TinyCheckpoint) -> None:
    assert json.loads((tiny_checkpoint("tiny-base") / "config.json").read_text()) == checkpoint_json("tiny-base").config
