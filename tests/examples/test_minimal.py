"""`examples/minimal.py`, a second implementation in plain PyTorch, produces the codes and samples of the engine."""

from __future__ import annotations

import importlib.util
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

from legato.api import load
from legato.models.noise import uniforms
from tests.conftest import TinyCheckpoint

ROOT = Path(__file__).resolve().parents[2]
TOLERANCE = 2e-5
"""Tolerance between windowed and whole-utterance decoding in float32, relative to full scale (docs/exactness.md)."""
FRAMES = 12
SEED = 3


@pytest.fixture(scope="module")
def minimal() -> ModuleType:
    spec = importlib.util.spec_from_file_location("minimal", ROOT / "examples" / "minimal.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def noise(frame: int) -> Sequence[float]:
    """The engine's noise for the first sequence of a stream with this seed."""
    return uniforms(SEED, 0, frame, 16)


CASES = pytest.mark.parametrize(
    ("kind", "text", "options"),
    [
        ("tiny-custom-voice", "Some words to speak, 7 of them.", {"language": "english"}),
        ("tiny-custom-voice", "Und noch ein Satz.", {"voice": "ryan"}),
        ("tiny-voice-design", "Some words to speak.", {"instruct": "A calm, low voice."}),
        ("tiny-embedded", "Good morning, and welcome.", {}),
    ],
)


@CASES
def test_codes_and_samples_match_the_engine(
    minimal: ModuleType, tiny_checkpoint: TinyCheckpoint, kind: str, text: str, options: dict[str, str]
) -> None:
    """Codes are compared through the samples, because one different code changes a frame by more than the limit."""
    codes, samples, rate_hz = minimal.synthesize(str(tiny_checkpoint(kind)), text, **options, limit=FRAMES, noise=noise)
    with load(tiny_checkpoint(kind)) as tts:
        speech = tts.say(text, seed=SEED, max_frames=FRAMES, **options)  # type: ignore[arg-type]
    assert rate_hz == speech.sample_rate_hz
    assert len(codes) == speech.frames
    assert np.abs(samples.numpy() - speech.samples).max() <= TOLERANCE
    with torch.inference_mode():
        changed = torch.tensor(codes)
        changed[0, 1] += 1 if changed[0, 1] == 0 else -1
        decoder_config, weights = minimal.read(tiny_checkpoint(kind) / "speech_tokenizer")
        other = minimal.decode(weights, decoder_config["decoder_config"], changed)
    assert (other - samples).abs().max() > TOLERANCE


def test_greedy_codes_match_the_engine(minimal: ModuleType, tiny_checkpoint: TinyCheckpoint, tmp_path: Path) -> None:
    folder = tmp_path / "greedy"
    shutil.copytree(tiny_checkpoint("tiny-custom-voice"), folder)
    path = folder / "generation_config.json"
    settings = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps({**settings, "do_sample": False, "subtalker_dosample": False}), encoding="utf-8")
    _, samples, _ = minimal.synthesize(str(folder), "Some words.", limit=FRAMES, noise=lambda _: [0.5] * 16)
    with load(folder) as tts:
        speech = tts.say("Some words.", max_frames=FRAMES)
    assert np.abs(samples.numpy() - speech.samples).max() <= TOLERANCE


def test_base_checkpoint_speaks_without_a_cloned_voice(minimal: ModuleType, tiny_checkpoint: TinyCheckpoint) -> None:
    codes, samples, _ = minimal.synthesize(str(tiny_checkpoint("tiny-base")), "Some words.", limit=4, noise=noise)
    assert (len(codes), len(samples)) == (4, 4 * 1920)
