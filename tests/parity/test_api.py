"""The Python API gives the samples of the official package's entry points, with the defaults of both."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import legato
from legato.api import CloneReference
from parity import cases
from parity.checks import near
from parity.records import Record


def case_named(name: str) -> cases.Case:
    return next(case for case in cases.all_cases() if case.name == name)


def say(folder: Path, case: cases.Case) -> np.ndarray:
    """Greedy, in the default text layout of this kind of checkpoint."""
    row = case.rows[0]
    clone = None
    if row.reference_samples:
        clone = CloneReference(cases.reference_audio(row.reference_samples), row.reference_text, append_silence_s=0.0)
    with legato.load(folder) as tts:
        return tts.say(
            row.text,
            voice=row.speaker,
            language=row.language,
            instruct=row.instruct,
            clone=clone,
            max_frames=case.max_new_tokens - 1,
            temperature=0.0,
            predictor_temperature=0.0,
        ).samples


@pytest.mark.parametrize(
    "name",
    [
        "tiny-custom-voice/chinese-dialect/whole",
        "tiny-custom-voice-wide/instruct/whole",
        "tiny-voice-design/design/whole",
        "tiny-base/icl-reference-longer/streaming",
        "tiny-base/vector-auto/streaming",
    ],
)
def test_say_equals_the_official_wrapper(
    name: str, tiny_checkpoint: Callable[[str], Path], record: Callable[[str], Record]
) -> None:
    case = case_named(name)
    official, key = record(case.checkpoint), f"{name}#0#wave"
    samples = say(tiny_checkpoint(case.checkpoint), case)
    check = near(name, "engine samples", official.reduce(key, samples), official.arrays[key])
    assert check.passed, check


def test_control_another_language_is_detected(
    tiny_checkpoint: Callable[[str], Path], record: Callable[[str], Record]
) -> None:
    case, other = (case_named(f"tiny-custom-voice/{name}/whole") for name in ("english", "auto"))
    official = record(case.checkpoint)
    samples = official.reduce(f"{case.name}#0#wave", say(tiny_checkpoint(case.checkpoint), case))
    assert not near(case.name, "engine samples", samples, official.arrays[f"{other.name}#0#wave"]).passed
