"""The voice in this repository: what was recorded, at the right length, between quiet ends; and it is understood."""

from __future__ import annotations

import re
from operator import attrgetter

import pytest
import torch

from legato.verify.subject import Subject
from tests.shipped_voice import CASES, FOLDER, Prompter, first_difference, recorded, spoken, subject

QUIET = 0.02
"""Root mean square of the first and last 40 ms, full scale 1."""

pytestmark = pytest.mark.skipif(not (FOLDER / "model.safetensors").exists(), reason="the voice is not in this checkout")


@pytest.fixture(scope="module")
def voice() -> Subject:
    return subject()


def test_it_is_small_enough_to_ship() -> None:
    assert sum(path.stat().st_size for path in FOLDER.rglob("*") if path.is_file()) < 40_000_000


CHOICES = pytest.mark.parametrize("case", range(len(CASES)))


@CHOICES
def test_fixed_text_and_seed_give_the_recorded_codes(voice: Subject, case: int) -> None:
    """Every one of them, where no draw was close; else at least all up to the first close draw."""
    outcome, record = spoken(voice, *CASES[case]).outcome, recorded(case)
    assert outcome.errors == ()
    assert set(first_difference(outcome.codes, record.codes)) <= record.close, (
        "after new weights: python -m tests.shipped_voice"
    )


@CHOICES
def test_every_code_that_was_not_a_close_draw_follows_from_the_recorded_ones_before_it(
    voice: Subject, case: int
) -> None:
    record = recorded(case)
    assert len(record.close) < len(record.codes) * len(record.codes[0]) / 100  # or the check would say little
    assert Prompter(voice, spoken(voice, *CASES[case]).sequence, record.codes).differing() <= record.close


@pytest.mark.parametrize("part", ["talker.model.layers.1", "code_predictor.model.layers.1"])
def test_control_a_wrong_weight_is_noticed(voice: Subject, part: str) -> None:
    """One of the 256 or so scales of one norm, half as large again."""
    weight = attrgetter(part)(voice.model).input_layernorm.weight
    record, sequence = recorded(1), spoken(voice, *CASES[1]).sequence
    kept = weight[5].item()
    try:
        with torch.no_grad():
            weight[5] = 1.5 * kept
        assert Prompter(voice, sequence, record.codes).differing() - record.close
    finally:
        with torch.no_grad():
            weight[5] = kept


def test_another_seed_gives_other_codes(voice: Subject) -> None:
    text, speaker, seed = CASES[0]
    assert spoken(voice, text, speaker, seed + 1).outcome.codes != recorded(0).codes


def test_the_wave_is_as_long_as_its_codes_loud_inside_and_quiet_at_both_ends(voice: Subject) -> None:
    outcome = spoken(voice, *CASES[0]).outcome
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
    samples = spoken(voice, "Please turn off the lights before you leave.", "heart", 1).outcome.samples[0]
    heard = torch.nn.functional.interpolate(samples[None, None], scale_factor=2 / 3, mode="linear")[0, 0]
    segments, _ = recogniser.transcribe(heard.numpy(), language="en")
    words = set(re.findall(r"[a-z]+", " ".join(segment.text for segment in segments).lower()))
    assert len(words & {"turn", "off", "the", "lights", "before", "you", "leave"}) >= 5
