"""Checkpoints of strangers: every error is a `CheckpointError` that names the file, and nothing costs what it claims.

The random cases run in a process of their own (`hostile_checkpoints`), whose memory is limited.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from legato.errors import CheckpointError, ConfigError
from legato.text.tokenizer import BpeTokenizer
from legato.weights.hub import missing_files
from legato.weights.loading import load_model
from tests.conftest import TinyCheckpoint
from tests.weights.hostile_checkpoints import Case, json_case, link_copy, try_case

CASES = {"tiny-base": 24, "tiny-custom-voice": 16, "tiny-embedded": 200}
"""Random cases of each kind; a load of the official kinds takes longer, because of their vocabulary."""
LOAD_S = 5.0


@pytest.mark.parametrize("kind", CASES)
def test_random_hostile_values_are_named_errors_at_no_cost(
    kind: str, tiny_checkpoint: TinyCheckpoint, tmp_path: Path
) -> None:
    seed, cases = str(len(kind)), CASES[kind]
    command = [sys.executable, "-m", "tests.weights.hostile_checkpoints", str(tiny_checkpoint(kind)), seed, str(cases)]
    run = subprocess.run([*command, str(tmp_path / "copy")], capture_output=True, text=True, timeout=200, check=False)
    assert run.returncode == 0, run.stderr[-2000:]
    assert run.stdout == ""
    assert f"tried {cases + cases // 4}" in run.stderr


def edited(source: Path, target: Path, case: Case) -> Path:
    link_copy(source, target)
    (target / case.file).unlink()
    (target / case.file).write_bytes(case.content)
    return target


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("talker_config", "num_hidden_layers"), str(2**63)),
        (("talker_config", "num_hidden_layers"), str(2**31 - 1)),
        (("talker_config", "num_hidden_layers"), "5000"),
        (("talker_config", "code_predictor_config", "num_hidden_layers"), str(10**9)),
        (("talker_config", "hidden_size"), str(2**31 - 1)),
        (("talker_config", "text_vocab_size"), str(2**31 - 1)),
        (("talker_config", "rope_theta"), "9" * 400),
        (("talker_config", "rope_theta"), "0"),
        (("talker_config", "rms_norm_eps"), "1e400"),
        (("tts_model_type",), "[" * 100_000 + "]" * 100_000),
        (("tts_model_type",), "9" * 5000),
        (("talker_config", "layer_types"), "[[]]"),
    ],
)
def test_hostile_setting_is_a_config_error_with_its_key(
    path: tuple[str, ...], value: str, tiny_checkpoint: TinyCheckpoint, tmp_path: Path
) -> None:
    source = tiny_checkpoint("tiny-base")
    folder = edited(source, tmp_path / "copy", json_case(source, "config.json", path, value))
    started_s = time.monotonic()
    with pytest.raises(ConfigError, match=r"config\.json") as caught:
        load_model(folder)
    assert time.monotonic() - started_s < LOAD_S
    assert len(str(caught.value)) < 1000
    if len(value) < 4000:  # otherwise the file is no JSON, and has no keys
        assert path[-1] in str(caught.value)


@pytest.mark.parametrize("key", ["sliding_window", "num_hidden_layers", "decoder_dim", "codebook_size"])
def test_hostile_size_of_the_codec_is_a_config_error_with_its_key(
    key: str, tiny_checkpoint: TinyCheckpoint, tmp_path: Path
) -> None:
    source, file = tiny_checkpoint("tiny-custom-voice"), "speech_tokenizer/config.json"
    folder = edited(source, tmp_path / "copy", json_case(source, file, ("decoder_config", key), str(10**6)))
    with pytest.raises(ConfigError, match=key):
        load_model(folder)


@pytest.mark.parametrize("name", ["merges.txt", "vocab.json", "tokenizer_config.json"])
@pytest.mark.parametrize("content", [b"\xff\xfe\x00bad", b"#version: 0.2\n\xc3", b"{}", b"[1]", b"[" * 100_000, b""])
def test_damaged_tokenizer_file_is_named(
    name: str, content: bytes, tiny_checkpoint: TinyCheckpoint, tmp_path: Path
) -> None:
    folder = edited(tiny_checkpoint("tiny-base"), tmp_path / "copy", Case(name, "", content))
    if name == "merges.txt" and content == b"":
        BpeTokenizer.load(folder)  # a vocabulary without merges: every byte is a token
        return
    with pytest.raises(CheckpointError, match=name):
        BpeTokenizer.load(folder)


@pytest.mark.parametrize(
    "entries",
    [
        {"1": "x"},
        {"1": {"content": ["a"]}},
        {"one": {"content": "x"}},
        {str(10**12): {"content": "x"}},
        {"1": {"content": "x", "lstrip": 3}},
        {"1": {"content": "\ud800"}},
    ],
)
def test_hostile_special_token_is_named(
    entries: dict[str, object], tiny_checkpoint: TinyCheckpoint, tmp_path: Path
) -> None:
    content = json.dumps({"added_tokens_decoder": entries}).encode()
    folder = edited(tiny_checkpoint("tiny-base"), tmp_path / "copy", Case("tokenizer_config.json", "", content))
    with pytest.raises(CheckpointError, match=r"tokenizer_config\.json.*added_tokens_decoder|lists id"):
        BpeTokenizer.load(folder)


@pytest.mark.parametrize(
    "weight_map",
    [
        *(5, [], {"a": 5}, {"a": None}, {"a": ["x"]}, {"a": ""}, {"a": "\0"}, {"a": "."}, {"a": ".."}),
        *({"a": "../model.safetensors"}, {"a": "/etc/passwd"}, {"a": "sub/part"}, {"a": "x" * 5000}),
        {"a": "absent.safetensors"},
    ],
)
def test_hostile_weight_index_is_named(weight_map: object, tiny_checkpoint: TinyCheckpoint, tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    link_copy(tiny_checkpoint("tiny-base"), folder)
    (folder / "model.safetensors").unlink()
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": weight_map}))
    with pytest.raises(CheckpointError, match=r"model\.safetensors\.index\.json"):
        load_model(folder)
    if weight_map == {"a": "absent.safetensors"}:
        assert missing_files(folder) == ["absent.safetensors"]
        return
    with pytest.raises(CheckpointError, match="weight_map"):
        missing_files(folder)


def test_empty_file_of_a_claimed_size_is_not_read(tiny_checkpoint: TinyCheckpoint, tmp_path: Path) -> None:
    """A sparse file takes no disk space, but reading it would take its size."""
    folder = edited(tiny_checkpoint("tiny-base"), tmp_path / "copy", Case("config.json", "", b"{}"))
    os.truncate(folder / "config.json", 2**40)
    with pytest.raises(ConfigError, match=r"config\.json has 1099511627776 bytes"):
        load_model(folder)


def test_dimension_of_an_empty_tensor_bounds_nothing(tiny_checkpoint: TinyCheckpoint, tmp_path: Path) -> None:
    """A tensor of shape [2**40, 0] takes no bytes, so it is no reason to build a module of this width."""
    source = tiny_checkpoint("tiny-base")
    header = json.dumps({"x": {"dtype": "F32", "shape": [2**40, 0], "data_offsets": [0, 0]}}).encode()
    content = len(header).to_bytes(8, "little") + header
    folder = edited(source, tmp_path / "copy", Case("model.safetensors", "", content))
    with pytest.raises(ConfigError, match=r"no dimension of its weights exceeds 0|weights have 1 tensors"):
        load_model(folder)


def test_control_case_without_the_file_in_its_message_is_reported(
    tiny_checkpoint: TinyCheckpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_folder: Path) -> None:
        raise CheckpointError("broken")

    source = tiny_checkpoint("tiny-base")
    link_copy(source, tmp_path / "copy")
    monkeypatch.setattr("legato.weights.loading.load_model", fail)
    case = json_case(source, "config.json", ("tts_model_type",), "5")
    assert try_case(source, tmp_path / "copy", case) == "no file in: broken"
