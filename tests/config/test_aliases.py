"""Aliases: default names, and files of more, with an error that names the entry at fault."""

from __future__ import annotations

import unicodedata
from pathlib import Path

import pytest

from legato.config.aliases import folded_name, read_aliases, undated_model, voice_alias_table
from legato.errors import InputError

FILE = """
[models]
"my-tts" = "embedded"

[voices]
Narrator = "heart"
host = ["michael", "ryan"]
"Ame\u0301lie" = "heart"
"""


def test_file_of_aliases(tmp_path: Path) -> None:
    path = tmp_path / "aliases.toml"
    path.write_text(FILE, encoding="utf-8")
    aliases = read_aliases(path)
    assert aliases.models == {"my-tts": "embedded"}
    assert aliases.voices == {"narrator": ("heart",), "host": ("michael", "ryan"), "am\u00e9lie": ("heart",)}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[models", "not valid TOML"),
        ("[speakers]\na = 'b'", "unknown table 'speakers'"),
        ("models = 3", "models must be a table"),
        ("[models]\na = 3", r"models\.a must be a name"),
        ("[models]\na = ['b', 'c']", r"models\.a must be one model id"),
        ("[voices]\na = ['b', 3]", r"voices\.a must be a name"),
        ("[voices]\na = []", r"voices\.a must be a name"),
        ("[voices]\na = ' '", r"voices\.a must be a name"),
        ("[voices]\n'' = 'b'", r"an alias in \[voices\] must have 1 to 256 characters"),
    ],
)
def test_invalid_files_are_refused(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "aliases.toml"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(InputError, match=message) as raised:
        read_aliases(path)
    assert "aliases.toml" in str(raised.value)


@pytest.mark.parametrize("content", [b"\xff\xfe[", None])
def test_unreadable_files_are_refused(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "aliases.toml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError, match="the file of aliases"):
        read_aliases(path)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("tts-1-1106", "tts-1"),
        ("tts-1-hd-1106", "tts-1-hd"),
        ("gpt-4o-mini-tts-2025-03-20", "gpt-4o-mini-tts"),
        ("gpt-4o-mini-tts-2025-12-15", "gpt-4o-mini-tts"),
        ("tts-1", "tts-1"),
        ("tts-1-hd", "tts-1-hd"),
        ("tts-1-latest", "tts-1-latest"),
        ("gpt-4o-mini-2025-12-15", "gpt-4o-mini-2025-12-15"),
        ("my-tts-1-1106", "my-tts-1-1106"),
    ],
)
def test_dates_of_openai_models_are_dropped(name: str, expected: str) -> None:
    assert undated_model(name) == expected


def test_names_are_compared_composed_and_without_case() -> None:
    assert folded_name(" AM\u00c9LIE ") == folded_name(unicodedata.normalize("NFD", "am\u00e9lie"))
    assert voice_alias_table([("A", "x"), ("a", "y")]) == {"a": ("x", "y")}
