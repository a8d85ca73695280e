"""The embedded voice: it gives the recorded codes, the right length, silence at both ends, and intelligible speech."""

from __future__ import annotations

import re
from operator import attrgetter

import pytest
import torch

from legato.verify.target import Target
from tests.shipped_voice import CASES, FOLDER, TeacherForcing, first_difference, generate, load_target, recorded

QUIET = 0.02
"""Maximum RMS of the first and last 40 ms, full scale 1."""

MISSING = "the embedded voice is not in this checkout"
pytestmark = pytest.mark.skipif(not (FOLDER / "model.safetensors").exists(), reason=MISSING)


@pytest.fixture(scope="module")
def voice() -> Target:
    return load_target()


def test_size_is_bounded() -> None:
    assert sum(path.stat().st_size for path in FOLDER.rglob("*") if path.is_file()) < 40_000_000


CHOICES = pytest.mark.parametrize("case", range(len(CASES)))


@CHOICES
def test_fixed_text_and_seed_give_the_recorded_codes(voice: Target, case: int) -> None:
    """All codes are equal, or at least those before the first near tie."""
    outcome, record = generate(voice, *CASES[case]).outcome, recorded(case)
    assert outcome.errors == ()
    difference = first_difference(outcome.codes, record.codes)
    assert difference is None or difference in record.near_ties, "after new weights: python -m tests.shipped_voice"


@CHOICES
def test_each_code_follows_from_the_recorded_codes_before_it(voice: Target, case: int) -> None:
    record = recorded(case)
    assert len(record.near_ties) < len(record.codes) * len(record.codes[0]) / 100  # else the check would be weak
    assert TeacherForcing(voice, generate(voice, *CASES[case]).sequence, record.codes).mismatches() <= record.near_ties


@pytest.mark.parametrize("part", ["talker.model.layers.1", "code_predictor.model.layers.1"])
def test_control_wrong_weight_is_detected(voice: Target, part: str) -> None:
    """One of about 256 scales of one norm is multiplied by 1.5."""
    weight = attrgetter(part)(voice.model).input_layernorm.weight
    record, sequence = recorded(1), generate(voice, *CASES[1]).sequence
    kept = weight[5].item()
    try:
        with torch.no_grad():
            weight[5] = 1.5 * kept
        assert TeacherForcing(voice, sequence, record.codes).mismatches() - record.near_ties
    finally:
        with torch.no_grad():
            weight[5] = kept


def test_another_seed_gives_different_codes(voice: Target) -> None:
    text, speaker, seed = CASES[0]
    assert generate(voice, text, speaker, seed + 1).outcome.codes != recorded(0).codes


def test_audio_has_the_length_of_its_codes_and_is_quiet_at_both_ends(voice: Target) -> None:
    outcome = generate(voice, *CASES[0]).outcome
    samples = outcome.samples[0]
    assert len(samples) == 1_920 * len(outcome.codes)
    assert 0.05 < float(samples.abs().max()) <= 1.0
    for end in (samples[:960], samples[-960:]):
        assert float(end.square().mean().sqrt()) < QUIET
    assert float(samples.square().mean().sqrt()) > 2 * QUIET


@pytest.mark.listen
def test_speech_is_intelligible(voice: Target) -> None:
    """Needs faster-whisper and the folder of its model: see recipes/embedded."""
    pytest.importorskip("faster_whisper")
    import os

    from faster_whisper import WhisperModel

    folder = os.environ.get("LEGATO_VOICE_CACHE", "")
    if not folder:
        pytest.skip("LEGATO_VOICE_CACHE is not set")
    recogniser = WhisperModel(f"{folder}/assets/whisper-tiny.en", device="cpu", compute_type="int8")
    samples = generate(voice, "Please turn off the lights before you leave.", "heart", 1).outcome.samples[0]
    heard = torch.nn.functional.interpolate(samples[None, None], scale_factor=2 / 3, mode="linear")[0, 0]
    segments, _ = recogniser.transcribe(heard.numpy(), language="en")
    words = set(re.findall(r"[a-z]+", " ".join(segment.text for segment in segments).lower()))
    assert len(words & {"turn", "off", "the", "lights", "before", "you", "leave"}) >= 5
