"""Languages, dialects, speaker names, and instruction support. Prompt rows are tested in `test_prompt.py`."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from legato.config.model import TalkerConfig
from legato.errors import UnknownLanguageError, UnknownVoiceError, UnsupportedError
from legato.text.prompt import (
    InstructSupport,
    allowed_languages,
    instruct_support,
    resolve_language,
    resolve_speaker,
)
from legato.types import PromptRow, PromptSpec
from tests.conftest import TinyCheckpoint
from tests.text.test_prompt import PAD, STREAMING, THINK, THINK_BOS, THINK_EOS, custom, embedded, ids, planned, read

__all__ = ["custom", "embedded"]


@pytest.mark.parametrize(
    ("language", "speaker", "wanted"),
    [
        ("auto", "", "auto"),
        ("", "ryan", "auto"),
        ("AUTO", "Eric", "sichuan_dialect"),
        ("Chinese", "eric", "sichuan_dialect"),
        ("chinese", "DYLAN", "beijing_dialect"),
        ("english", "eric", "english"),
        ("FRENCH", "", "french"),
        ("en", "eric", "english"),
        ("en-US", "", "english"),
        (" EN_gb ", "", "english"),
        ("zh", "", "chinese"),
        ("zh-Hant-TW", "", "chinese"),
        ("zh", "eric", "sichuan_dialect"),
        ("pt-BR", "", "portuguese"),
    ],
)
def test_language_and_dialect(language: str, speaker: str, wanted: str, custom: TalkerConfig) -> None:
    assert resolve_language(custom, language, speaker) == wanted


def test_dialect_is_used_in_tag_block(custom: TalkerConfig) -> None:
    plan = planned(custom, PromptSpec("auto", "eric", STREAMING), ids(10))
    assert [row.code for row in plan.rows[3:8]] == [THINK, THINK_BOS, 2062, THINK_EOS, 2875]


@pytest.mark.parametrize("language", ["klingon", "sichuan_dialect", "nl", "e", "-en"])
def test_unknown_language_error_lists_allowed_languages(language: str, custom: TalkerConfig) -> None:
    with pytest.raises(UnknownLanguageError, match="auto, chinese, english") as caught:
        resolve_language(custom, language, "")
    assert "dialect" not in str(caught.value).split("allowed:")[1]
    assert len(allowed_languages(custom)) == 11


def test_embedded_voice_speaks_english(embedded: TalkerConfig) -> None:
    assert allowed_languages(embedded) == ("auto", "english")
    with pytest.raises(UnknownLanguageError, match="allowed: auto, english"):
        planned(embedded, PromptSpec("german", "one", STREAMING), [(1, 1, 1, 1)])


def test_unknown_speaker_error_lists_allowed_speakers(custom: TalkerConfig) -> None:
    assert resolve_speaker(custom, " Ono_Anna ") == 2873
    with pytest.raises(UnknownVoiceError, match="aiden, dylan, eric"):
        resolve_speaker(custom, "bob")
    with pytest.raises(UnknownVoiceError, match="no built-in speakers"):
        resolve_speaker(replace(custom, speakers={}), "bob")


def test_conflicting_voice_fields_raise(custom: TalkerConfig) -> None:
    with pytest.raises(UnsupportedError, match="not both"):
        planned(custom, PromptSpec("auto", "ryan", STREAMING, speaker_vector=True), ids(1))
    with pytest.raises(UnsupportedError, match="reference's codes"):
        planned(custom, PromptSpec("auto", "", STREAMING, speaker_vector=True, reference_text=ids(1)), ids(1))


@pytest.mark.parametrize(
    ("kind", "wanted"),
    [
        ("tiny-custom-voice", InstructSupport.IGNORED),
        ("tiny-custom-voice-wide", InstructSupport.USED),
        ("tiny-voice-design", InstructSupport.USED),
        ("tiny-base", InstructSupport.UNSUPPORTED),
        ("tiny-embedded", InstructSupport.UNSUPPORTED),
    ],
)
def test_instruction_support_by_model_kind(kind: str, wanted: InstructSupport, tiny_checkpoint: TinyCheckpoint) -> None:
    assert instruct_support(read(tiny_checkpoint(kind))) is wanted


def test_fine_tuned_speaker(tiny_checkpoint: TinyCheckpoint, tmp_path: Path) -> None:
    """A speaker that fine-tuning added under id 3000 works like a built-in one."""
    source = tiny_checkpoint("tiny-custom-voice")
    for path in source.iterdir():
        if path.name != "config.json":
            (tmp_path / path.name).symlink_to(path)
    values = json.loads((source / "config.json").read_text())
    values["talker_config"] |= {"spk_id": {"Mine": 3000}, "spk_is_dialect": {"Mine": False}}
    (tmp_path / "config.json").write_text(json.dumps(values))
    plan = planned(read(tmp_path).talker, PromptSpec("auto", "mine", STREAMING), ids(10))
    assert plan.rows[6] == PromptRow(text=PAD, code=3000)
