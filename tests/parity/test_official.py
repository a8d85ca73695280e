"""Legato computes what the official package computed: the committed records of `make parity`, without the package."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from parity import cases
from parity.checks import Check, equal, near
from parity.compare import compare_codec, compare_row, compare_speaker, compare_speech, compare_texts
from parity.controls import FAULTS, Fault, caught, compare_fault, compare_wrong_language, first_case
from parity.records import Record
from parity.subject import Subject

Subjects = Callable[[str], Subject]
Records = Callable[[str], Record]


def failures(checks: list[Check]) -> list[str]:
    """What failed, readable; the comparison itself must have happened."""
    assert checks
    return [f"{check.what}, {check.where}: {check.error:g}; {check.note}" for check in checks if not check.passed]


@pytest.mark.parametrize("case", cases.all_cases(), ids=lambda case: case.name)
def test_cases_equal_the_official_package(case: cases.Case, subject: Subjects, record: Records, tmp_path: Path) -> None:
    """Row by row along the official codes, and, where nothing is drawn, as the product speaks the whole case."""
    mine, theirs = subject(case.checkpoint), record(case.checkpoint)
    if case.stop_at >= 0:
        mine = mine.stopping(tmp_path / "stopping", theirs.facts["cases"][case.name]["winner"])
    checks = [check for index in range(len(case.rows)) for check in compare_row(mine, theirs, case, index)]
    if case.draw is None:
        checks += compare_speech(mine, theirs, case)
    assert failures(checks) == []


@pytest.mark.parametrize("name", cases.CHECKPOINTS)
def test_codec_equals_the_official_package(name: str, subject: Subjects, record: Records) -> None:
    assert failures(compare_codec(subject(name), record(name))) == []


@pytest.mark.parametrize("name", [name for name in cases.CHECKPOINTS if "base" in name])
def test_speaker_vectors_equal_the_official_package(name: str, subject: Subjects, record: Records) -> None:
    assert failures(compare_speaker(subject(name), record(name))) == []


def test_token_ids_equal_the_official_package(subject: Subjects, record: Records) -> None:
    assert failures(compare_texts(subject("tiny-base"), record("tiny-base"))) == []


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.tensor)
def test_a_fault_in_one_weight_is_noticed(
    fault: Fault, tiny_checkpoint: Callable[[str], Path], record: Records, tmp_path: Path
) -> None:
    official = record(fault.checkpoint)
    assert caught(compare_fault(fault, tiny_checkpoint(fault.checkpoint).parent, official, tmp_path), fault.caught_by)


def test_one_wrong_id_is_noticed(subject: Subjects, record: Records) -> None:
    case = first_case("tiny-custom-voice")
    checks = compare_wrong_language(subject(case.checkpoint), record(case.checkpoint), case)
    assert caught(checks, "prompt rows")


def test_there_are_at_least_36_greedy_cases_in_both_layouts() -> None:
    greedy = [case for case in cases.all_cases() if case.draw is None]
    assert len(greedy) >= 36
    assert {case.whole for case in greedy} == {True, False}
    assert any(len(case.rows) > 1 for case in greedy)


def test_the_records_depend_on_their_inputs(record: Records) -> None:
    """Requests get different codes, and the codec is not at its rails: comparing constants proves nothing."""
    for name in cases.CHECKPOINTS:
        arrays = record(name).arrays
        greedy = [f"{case.name}#{i}#" for case in cases.cases_of(name) if not case.draw for i in range(len(case.rows))]
        assert len({arrays[key + "codes"].tobytes() for key in greedy}) > len(greedy) / 2
        wave = arrays["decode#170"]
        assert float(np.mean(np.abs(wave) >= 1.0)) < 0.05
        assert float(wave.std()) > 0.01


@pytest.mark.parametrize("bad", [np.full(3, np.nan), np.zeros(2), np.array([0.0, 0.0, 0.1])])
def test_nan_and_another_shape_never_pass(bad: np.ndarray) -> None:
    assert not near("here", "mel", bad, np.zeros(3)).passed
    assert not near("here", "mel", np.zeros(3), bad).passed


def test_nothing_never_equals_nothing() -> None:
    assert not equal("here", "codes", np.zeros(0), np.zeros(0)).passed
    assert not near("here", "mel", np.zeros(0), np.zeros(0)).passed


def test_one_differing_code_is_named() -> None:
    check = equal("here", "codes", np.array([[1, 2], [3, 4]]), np.array([[1, 2], [3, 5]]))
    assert not check.passed
    assert "(1, 1): 4, official 5" in check.note
