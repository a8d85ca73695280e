"""Conversion of the teacher's phonemes and durations to phones and sample counts, without losing time."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from legato.text.english.phones import INVENTORY

SOURCE = Path(__file__).resolve().parents[2] / "recipes" / "embedded" / "alignment.py"


@pytest.fixture(scope="module")
def alignment() -> ModuleType:
    spec = importlib.util.spec_from_file_location("recipe_alignment", SOURCE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look up their module
    spec.loader.exec_module(module)
    return module


def test_stress_time_goes_to_vowel_and_space_time_is_split(alignment: ModuleType) -> None:
    found = alignment.align("hˈI, ðə.", [14, 1, 2, 3, 4, 6, 1, 2, 5, 1])
    assert [INVENTORY[i] for i in found.ids] == ["h", "ˈI", ",", "ð", "ə", "."]
    assert [samples / 600 for samples in found.samples] == [1, 5, 10, 1, 2, 5]
    between = alignment.align("aɪ ʌ".replace("aɪ", "I"), [14, 2, 4, 3, 1])
    assert [samples / 600 for samples in between.samples] == [4, 5]


def test_total_duration_is_preserved(alignment: ModuleType) -> None:
    durations = [14, 2, 1, 3, 2, 2, 4, 7, 1]
    found = alignment.align("ˈæ ˌO n.", [*durations, 1])
    assert sum(found.samples) == 600 * sum(durations[1:])


def test_unknown_symbols_and_wrong_duration_count_raise(alignment: ModuleType) -> None:
    with pytest.raises(KeyError):
        alignment.align("x", [1, 1, 1])
    with pytest.raises(ValueError, match="durations"):
        alignment.align("hI", [1, 1])


def test_track_has_every_phone_without_drift(alignment: ModuleType) -> None:
    found = alignment.align("ðɪsɪz" * 8, [14, *([1] * 40), 1])
    quarters = [p for token in alignment.quarter_track(found, lead_samples=3840, frames=20) for p in token]
    spoken = [p for p in quarters if INVENTORY[p] not in ("sil", "fin")]
    assert quarters[:8] == [INVENTORY.index("sil")] * 8
    assert len(spoken) == round(40 * 600 / 480)
    assert len(quarters) == 80
