"""Default quantization: large checkpoints on a CPU with fast int8, and nothing else."""

from __future__ import annotations

import pytest

import legato
from legato.backends import select
from legato.config.checkpoint import read_model_config
from legato.config.quantization import INT4, INT8, NONE
from legato.weights.quantization import choose_quantization, is_large
from legato.weights.random_checkpoint import write_json_files
from legato.weights.random_configs import CHECKPOINT_KINDS, checkpoint_json
from tests.conftest import TinyCheckpoint


@pytest.mark.parametrize("kind", sorted(CHECKPOINT_KINDS))
def test_official_sizes_are_large_and_tiny_ones_are_not(kind: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp(kind)
    contents = checkpoint_json(kind)
    codec_folder = folder / "speech_tokenizer"
    codec_folder.mkdir()
    write_json_files(contents, folder, codec_folder)
    assert is_large(read_model_config(folder).talker.stack) == kind.startswith(("0.6B", "1.7B"))


@pytest.mark.parametrize(
    ("requested", "stored", "device", "large", "fast", "mode"),
    [
        (None, NONE, "cpu", True, True, INT8),
        (None, NONE, "cpu", False, True, NONE),
        (None, NONE, "cpu", True, False, NONE),
        (None, NONE, "cuda", True, True, NONE),
        (None, INT4, "cpu", True, True, INT4),
        (NONE, NONE, "cpu", True, True, NONE),
        (INT4, NONE, "cpu", True, True, INT4),
    ],
)
def test_default_mode(requested: str | None, stored: str, device: str, large: bool, fast: bool, mode: str) -> None:
    choice = choose_quantization(requested, stored, device, fast_int8=fast, large=large)
    assert choice.mode == mode
    if requested is None and stored == NONE and mode == INT8:
        assert "--quant none" in choice.note


def test_load_follows_the_default_and_an_explicit_choice(
    tiny_checkpoint: TinyCheckpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the limit lowered, a tiny checkpoint is large."""
    folder = tiny_checkpoint("tiny-custom-voice")
    with legato.load(folder) as tts:
        assert tts.model.quant == NONE
    monkeypatch.setattr("legato.weights.quantization.LARGE_PARAMETERS", 0)
    monkeypatch.setattr(select, "has_fast_int8", lambda: True)
    for fast_bf16, codec in ((True, "torch.bfloat16"), (False, "torch.float32")):
        monkeypatch.setattr(select, "has_fast_bf16", lambda fast=fast_bf16: fast)
        with legato.load(folder) as tts:
            assert (tts.model.quant, str(tts.model.decoder.dtype)) == (INT8, codec)
    with legato.load(folder, quant=NONE) as tts:
        assert (tts.model.quant, str(tts.model.decoder.dtype)) == (NONE, "torch.float32")
    with legato.load(folder, codec_dtype="float32") as tts:
        assert (tts.model.quant, str(tts.model.decoder.dtype)) == (INT8, "torch.float32")
