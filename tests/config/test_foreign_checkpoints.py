"""Errors name models in other formats and what to do, instead of taking them for a hub id or a broken checkpoint."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from legato.config.checkpoint import read_model_config
from legato.config.foreign_checkpoints import describe_file, describe_names
from legato.errors import CheckpointError, ConfigError
from legato.weights.hub import locate
from legato.weights.loading import load_model
from tests.conftest import TinyCheckpoint


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("m.gguf", "GGUF"),
        ("M.GGUF", "GGUF"),
        ("model.safetensors", "give the folder with the file"),
        ("config.json", "give the folder with the file"),
        ("pytorch_model.bin", "may contain code"),
        ("model.pth", "may contain code"),
        ("model.onnx", "ONNX"),
        ("voice.tar", "unpack"),
        ("notes", "it is a file"),
    ],
)
def test_files_are_no_hub_ids(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, message: str) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / name).write_bytes(b"x")
    monkeypatch.chdir(tmp_path)
    for path in (f"models/{name}", str(tmp_path / "models" / name)):
        with pytest.raises(CheckpointError, match=message) as raised:
            locate(path)
        assert "there is no such file" not in str(raised.value)


def test_a_missing_file_is_no_hub_id_either() -> None:
    with pytest.raises(CheckpointError, match="there is no such file; and GGUF"):
        locate("models/m.gguf")
    assert describe_file(Path("Qwen/Qwen3-TTS-12Hz-0.6B-Base")) is None


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (
            {"adapter_config.json": '{"base_model_name_or_path": "Qwen/X"}', "adapter_model.safetensors": ""},
            "LoRA .* Qwen/X",
        ),
        ({"adapter_config.json": "[", "adapter_model.bin": ""}, "LoRA adapter: merge"),
        ({"pytorch_model.bin": ""}, "pytorch_model.bin"),
        ({"pytorch_model-00001-of-00002.bin": "", "config.json": "{}"}, "may contain code|tts_model_type"),
        ({"m-Q4.gguf": ""}, "m-Q4.gguf, and no safetensors"),
        ({"model_index.json": "{}"}, "diffusers"),
        ({"config.json": '{"architectures": ["LlamaForCausalLM"]}'}, "is a LlamaForCausalLM model"),
        ({"config.json": '{"model_type": "vits"}'}, "is a vits model"),
    ],
)
def test_folders_of_other_models_are_named(tmp_path: Path, files: dict[str, str], message: str) -> None:
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    with pytest.raises((CheckpointError, ConfigError), match=message):
        read_model_config(tmp_path)


def test_checkpoint_with_pickled_weights_or_an_adapter(tiny_checkpoint: TinyCheckpoint, tmp_path: Path) -> None:
    """The settings are right, and only the weights are in another format."""
    source = tiny_checkpoint("tiny-base")
    for path in source.rglob("*"):
        target = tmp_path / path.relative_to(source)
        if path.is_dir():
            target.mkdir()
        elif path != source / "model.safetensors":
            target.symlink_to(path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"x")
    with pytest.raises(CheckpointError, match=r"pytorch_model\.bin.*convert them"):
        load_model(tmp_path)
    (tmp_path / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": "a/b"}))
    with pytest.raises(CheckpointError, match="LoRA adapter of a/b"):
        load_model(tmp_path)


def test_repositories_are_described_by_their_files() -> None:
    assert "GGUF" in (describe_names(["README.md", "m.gguf"]) or "")
    assert "LoRA" in (describe_names(["README.md", "adapter_config.json"]) or "")
    assert describe_names(["README.md"]) is None
