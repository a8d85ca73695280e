"""The checkpoint digest: it depends on the contents of the files that are loaded, and on nothing else."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from pathlib import Path

import pytest

from legato.weights.checkpoint_digest import checkpoint_digest
from tests.conftest import TinyCheckpoint

CHANGED = ("model.safetensors", "config.json", "generation_config.json", "speech_tokenizer/model.safetensors")


@pytest.fixture
def folder(tiny_checkpoint: TinyCheckpoint, tmp_path: Path) -> Path:
    copy = tmp_path / "copy"
    shutil.copytree(tiny_checkpoint("tiny-embedded"), copy)
    return copy


def test_a_copy_has_the_same_digest(folder: Path, tiny_checkpoint: TinyCheckpoint) -> None:
    (folder / "README.md").write_text("Not loaded.")
    assert checkpoint_digest(folder) == checkpoint_digest(tiny_checkpoint("tiny-embedded"))


@pytest.mark.parametrize("name", CHANGED)
def test_every_file_that_is_loaded_changes_the_digest(name: str, folder: Path) -> None:
    before = checkpoint_digest(folder)
    content = bytearray((folder / name).read_bytes())
    content[-1] ^= 1
    (folder / name).write_bytes(content)
    assert checkpoint_digest(folder) != before


def test_the_digest_can_be_computed_with_sha256sum(folder: Path) -> None:
    names = sorted([*CHANGED, "speech_tokenizer/config.json"])
    listed = subprocess.run(["sha256sum", *names], cwd=folder, capture_output=True, check=True).stdout
    assert checkpoint_digest(folder) == hashlib.sha256(listed).hexdigest()
