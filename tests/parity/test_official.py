"""Legato against the committed records of the official package (`make parity`), without the package."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from parity import cases
from parity.checks import Check, equal, near
from parity.compare import compare_codec, compare_engine, compare_row, compare_speaker, compare_texts
from parity.controls import FAULTS, Fault, caught, compare_fault, compare_wrong_language, first_case
from parity.legato_side import ParityModel
from parity.records import Record

ParityModels = Callable[[str], ParityModel]
Records = Callable[[str], Record]


def failures(checks: list[Check]) -> list[str]:
    """Descriptions of the failed checks; fails if there are no checks."""
    assert checks
    return [f"{check.what}, {check.where}: {check.error:g}; {check.note}" for check in checks if not check.passed]


@pytest.mark.parametrize("case", cases.all_cases(), ids=lambda case: case.name)
def test_cases_equal_the_official_package(
    case: cases.Case, model: ParityModels, record: Records, tmp_path: Path
) -> None:
    """Each row with the official codes as input; greedy cases also through the whole engine."""
    tested, official = model(case.checkpoint), record(case.checkpoint)
    if case.stop_at is not None:
        tested = tested.stopping(tmp_path / "stopping", official.facts["cases"][case.name]["winner"])
    checks = [check for index in range(len(case.rows)) for check in compare_row(tested, official, case, index)]
    if case.sampling is None:
        checks += compare_engine(tested, official, case)
    assert failures(checks) == []


@pytest.mark.parametrize("name", cases.CHECKPOINTS)
def test_codec_equals_the_official_package(name: str, model: ParityModels, record: Records) -> None:
    assert failures(compare_codec(model(name), record(name))) == []


@pytest.mark.parametrize("name", [name for name in cases.CHECKPOINTS if "base" in name])
def test_speaker_vectors_equal_the_official_package(name: str, model: ParityModels, record: Records) -> None:
    assert failures(compare_speaker(model(name), record(name))) == []


def test_token_ids_equal_the_official_package(model: ParityModels, record: Records) -> None:
    assert failures(compare_texts(model("tiny-base"), record("tiny-base"))) == []


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.tensor)
def test_control_fault_in_one_weight_is_detected(
    fault: Fault, tiny_checkpoint: Callable[[str], Path], record: Records, tmp_path: Path
) -> None:
    official = record(fault.checkpoint)
    assert caught(compare_fault(fault, tiny_checkpoint(fault.checkpoint).parent, official, tmp_path), fault.caught_by)


def test_control_one_wrong_id_is_detected(model: ParityModels, record: Records) -> None:
    case = first_case("tiny-custom-voice")
    checks = compare_wrong_language(model(case.checkpoint), record(case.checkpoint), case)
    assert caught(checks, "prompt rows")


def test_at_least_36_greedy_cases_in_both_layouts() -> None:
    greedy = [case for case in cases.all_cases() if case.sampling is None]
    assert len(greedy) >= 36
    assert {case.whole for case in greedy} == {True, False}
    assert any(len(case.rows) > 1 for case in greedy)


def test_records_depend_on_their_inputs(record: Records) -> None:
    """Requests give different codes and samples do not clip: comparing constants would prove nothing."""
    for name in cases.CHECKPOINTS:
        arrays = record(name).arrays
        greedy = [
            f"{case.name}#{i}#" for case in cases.cases_of(name) if not case.sampling for i in range(len(case.rows))
        ]
        assert len({arrays[key + "codes"].tobytes() for key in greedy}) > len(greedy) / 2
        wave = arrays["decode#170"]
        assert float(np.mean(np.abs(wave) >= 1.0)) < 0.05
        assert float(wave.std()) > 0.01


@pytest.mark.parametrize("bad", [np.full(3, np.nan), np.zeros(2), np.array([0.0, 0.0, 0.1])])
def test_nan_and_different_shapes_never_pass(bad: np.ndarray) -> None:
    assert not near("here", "mel", bad, np.zeros(3)).passed
    assert not near("here", "mel", np.zeros(3), bad).passed


def test_empty_arrays_never_pass() -> None:
    assert not equal("here", "codes", np.zeros(0), np.zeros(0)).passed
    assert not near("here", "mel", np.zeros(0), np.zeros(0)).passed


def test_first_different_code_is_named() -> None:
    check = equal("here", "codes", np.array([[1, 2], [3, 4]]), np.array([[1, 2], [3, 5]]))
    assert not check.passed
    assert "(1, 1): 4, official 5" in check.note
