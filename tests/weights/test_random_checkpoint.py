"""Random checkpoints: official names and shapes, reproducible values, and outputs that depend on inputs."""

from __future__ import annotations

import gzip
import hashlib
import re
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open

from legato.config.checkpoint import read_model_config
from legato.errors import InputError
from legato.weights.loading import load_model
from legato.weights.progress import Progress
from legato.weights.random_checkpoint import to_bfloat16, write_checkpoint, write_json_files
from legato.weights.random_configs import CHECKPOINT_KINDS, checkpoint_json
from legato.weights.random_tensors import TensorSpec, codec_tensors, main_tensors
from tests.conftest import TinyCheckpoint

Inventory = dict[str, tuple[int, ...]]
INVENTORIES = Path(__file__).parents[1] / "fixtures/inventory"
VOCAB_SHA256 = "ca10d7e9fb3ed18575dd1e277a2579c16d108e32f27439684afa0e10b1440910"
MERGES_SHA256 = "599bab54075088774b1733fde865d5bd747cbcc7a547c5bc12610e874e26f5e3"


def inventory(name: str) -> Inventory:
    """Tensor names and shapes in the header of a released file."""
    text = gzip.decompress((INVENTORIES / f"{name}.txt.gz").read_bytes()).decode()
    pairs = (line.split("\t") for line in text.splitlines())
    return {tensor: tuple(int(size) for size in re.findall(r"\d+", shape)) for tensor, shape in pairs}


def listed(specs: Iterable[TensorSpec]) -> Inventory:
    return {spec.name: spec.shape for spec in specs}


@pytest.mark.parametrize("size", ["0.6B-Base", "1.7B-Base"])
def test_tensors_equal_the_official_files(size: str, tmp_path: Path) -> None:
    """Names and shapes equal those of the released files: 478 or 480 tensors, and 496 of the speech tokenizer."""
    (tmp_path / "speech_tokenizer").mkdir()
    write_json_files(checkpoint_json(size), tmp_path, tmp_path / "speech_tokenizer")
    config = read_model_config(tmp_path)
    assert listed(main_tensors(config)) == inventory(size)
    assert listed(codec_tensors(config.codec)) == inventory("speech_tokenizer")


def test_custom_voice_lacks_only_the_speaker_encoder(tmp_path: Path) -> None:
    (tmp_path / "speech_tokenizer").mkdir()
    write_json_files(checkpoint_json("0.6B-CustomVoice"), tmp_path, tmp_path / "speech_tokenizer")
    made = listed(main_tensors(read_model_config(tmp_path)))
    base = inventory("0.6B-Base")
    assert made == {name: shape for name, shape in base.items() if not name.startswith("speaker_encoder.")}
    assert len(made) == 402


def test_tokenizer_files_are_official(tiny_checkpoint: TinyCheckpoint) -> None:
    folder = tiny_checkpoint("tiny-base")
    assert hashlib.sha256((folder / "vocab.json").read_bytes()).hexdigest() == VOCAB_SHA256
    assert hashlib.sha256((folder / "merges.txt").read_bytes()).hexdigest() == MERGES_SHA256


def test_values_depend_on_the_seed(tmp_path: Path) -> None:
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        write_checkpoint("tiny-embedded", tmp_path / name, seed=seed)
    for file in ("model.safetensors", "speech_tokenizer/model.safetensors"):
        a, b, c = ((tmp_path / name / file).read_bytes() for name in "abc")
        assert a == b
        assert a != c


def test_file_is_plain_safetensors(tiny_checkpoint: TinyCheckpoint) -> None:
    """bfloat16 language model, float32 codec, not sharded, readable by the safetensors library."""
    folder = tiny_checkpoint("tiny-custom-voice-wide")
    for file, dtype in (("model.safetensors", torch.bfloat16), ("speech_tokenizer/model.safetensors", torch.float32)):
        with safe_open(str(folder / file), framework="pt") as reader:
            assert reader.metadata() == {"format": "pt"}
            for name in reader.keys():  # noqa: SIM118  a file handle, not a mapping
                tensor = reader.get_tensor(name)
                assert tensor.dtype == dtype
                assert bool(tensor.isfinite().all())
                assert tensor.numel() == 1 or float(tensor.float().std()) > 1e-3, name


def test_to_bfloat16_rounds_like_torch() -> None:
    values = np.concatenate(
        [np.random.default_rng(0).standard_normal(10_000), [0.0, -0.0, 1.00390625, 1.01171875, 3e38, 1e-40]]
    ).astype(np.float32)
    wanted = torch.from_numpy(values).to(torch.bfloat16).view(torch.int16).numpy().view(np.uint16)
    assert np.array_equal(to_bfloat16(values), wanted)


def test_progress_ends_at_the_total_size(tmp_path: Path) -> None:
    seen: list[Progress] = []
    write_checkpoint("tiny-embedded", tmp_path / "made", progress=seen.append)
    assert [each.done for each in seen] == sorted(each.done for each in seen)
    assert seen[-1].done == seen[-1].total
    size = sum(path.stat().st_size for path in (tmp_path / "made").rglob("*.safetensors"))
    assert seen[-1].total < size < 1.1 * seen[-1].total


def test_existing_files_are_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("x")
    with pytest.raises(InputError, match="not empty"):
        write_checkpoint("tiny-embedded", tmp_path)
    with pytest.raises(InputError, match="tiny-base"):
        write_checkpoint("tiny-nothing", tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_codec_next_to_the_folder(tmp_path: Path) -> None:
    write_checkpoint("tiny-embedded", tmp_path / "model", codec_inside=False)
    assert (tmp_path / "speech_tokenizer/model.safetensors").is_file()
    assert load_model(tmp_path / "model").config.kind == "embedded"


@pytest.mark.parametrize("like", [like for like in CHECKPOINT_KINDS if like.startswith("tiny")])
def test_outputs_depend_on_inputs(like: str, tiny_checkpoint: TinyCheckpoint) -> None:
    """Greedy first codes and codec samples differ between inputs; small weights would hide faults."""
    torch.manual_seed(0)
    model = load_model(tiny_checkpoint(like))
    width = model.config.talker.stack.hidden_size
    with torch.inference_mode():
        logits = model.talker.first_code_logits(model.talker.forward_uncached(torch.randn(16, 6, width))[:, -1])
        assert len(set(logits.argmax(-1).tolist())) > 8
        decoder = model.config.codec.decoder
        codes = torch.randint(decoder.codebook_size, (4, 5, decoder.num_quantizers))
        samples, _ = model.decoder.forward(model.decoder.initial_history(4), codes)
        changed = codes.clone()
        changed[:, 0, -1] = (changed[:, 0, -1] + 1) % decoder.codebook_size
        other, _ = model.decoder.forward(model.decoder.initial_history(4), changed)
    assert float(samples.std()) > 1e-3
    assert float((samples - other).abs().max()) > 1e-3
    assert float((samples.abs() >= 1.0).float().mean()) < 0.5
