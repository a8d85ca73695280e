"""The voice in this repository: what was recorded, at the right length, between quiet ends; and it is understood."""

from __future__ import annotations

import json
import re

import pytest
import torch

from legato.verify.subject import Subject
from tests.shipped_voice import CASES, FOLDER, RECORD, spoken, subject

QUIET = 0.02
"""Root mean square of the first and last 40 ms, full scale 1."""

pytestmark = pytest.mark.skipif(not (FOLDER / "model.safetensors").exists(), reason="the voice is not in this checkout")


@pytest.fixture(scope="module")
def voice() -> Subject:
    return subject()


def test_it_is_small_enough_to_ship() -> None:
    assert sum(path.stat().st_size for path in FOLDER.rglob("*") if path.is_file()) < 40_000_000


@pytest.mark.parametrize("case", range(len(CASES)))
def test_fixed_text_and_seed_give_the_recorded_codes(voice: Subject, case: int) -> None:
    recorded = json.loads(RECORD.read_text(encoding="utf-8"))[case]
    text, speaker, seed = CASES[case]
    assert (recorded["text"], recorded["voice"], recorded["seed"]) == CASES[case]
    outcome = spoken(voice, text, speaker, seed)
    assert outcome.errors == ()
    assert [list(frame) for frame in outcome.codes] == recorded["codes"], (
        "after new weights: python -m tests.shipped_voice"
    )


def test_another_seed_gives_other_codes(voice: Subject) -> None:
    text, speaker, seed = CASES[0]
    assert spoken(voice, text, speaker, seed + 1).codes != spoken(voice, text, speaker, seed).codes


def test_the_wave_is_as_long_as_its_codes_loud_inside_and_quiet_at_both_ends(voice: Subject) -> None:
    outcome = spoken(voice, *CASES[0])
    samples = outcome.samples[0]
    assert len(samples) == 1_920 * len(outcome.codes)
    assert 0.05 < float(samples.abs().max()) <= 1.0
    for end in (samples[:960], samples[-960:]):
        assert float(end.square().mean().sqrt()) < QUIET
    assert float(samples.square().mean().sqrt()) > 2 * QUIET


@pytest.mark.listen
def test_it_is_understood(voice: Subject) -> None:
    """Needs faster-whisper and the recogniser's folder: see recipes/embedded."""
    pytest.importorskip("faster_whisper")
    import os

    from faster_whisper import WhisperModel

    folder = os.environ.get("LEGATO_VOICE_CACHE", "")
    if not folder:
        pytest.skip("LEGATO_VOICE_CACHE is not set")
    recogniser = WhisperModel(f"{folder}/assets/whisper-tiny.en", device="cpu", compute_type="int8")
    samples = spoken(voice, "Please turn off the lights before you leave.", "heart", 1).samples[0]
    heard = torch.nn.functional.interpolate(samples[None, None], scale_factor=2 / 3, mode="linear")[0, 0]
    segments, _ = recogniser.transcribe(heard.numpy(), language="en")
    words = set(re.findall(r"[a-z]+", " ".join(segment.text for segment in segments).lower()))
    assert len(words & {"turn", "off", "the", "lights", "before", "you", "leave"}) >= 5
