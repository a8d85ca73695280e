"""Verdicts, and the conditions that fail a run."""

from __future__ import annotations

from legato.verify.compare import Comparison, Tolerance
from legato.verify.results import CheckLine, ExecutionInfo, Kind, Verdict, tally

EXECUTION = ExecutionInfo("cpu", "float32", 1, "")


def line(error: float, kind: Kind = Kind.CLAIM, *, group: str = "one", limit: float = 0.5) -> CheckLine:
    return CheckLine(
        group=group,
        claim="a claim",
        setting="here",
        execution=EXECUTION,
        comparison=Comparison(error, error, 1),
        tolerance=Tolerance(limit, "a reason"),
        kind=kind,
    )


def test_verdicts() -> None:
    assert line(0.5).verdict is Verdict.EQUAL
    assert line(0.6).verdict is Verdict.DIFFERENT
    assert line(float("nan")).verdict is Verdict.DIFFERENT
    assert line(0.6, Kind.CONTROL).verdict is Verdict.DETECTED
    assert line(float("inf"), Kind.CONTROL).verdict is Verdict.DETECTED
    assert line(0.5, Kind.CONTROL).verdict is Verdict.NOT_DETECTED
    assert line(9.0, Kind.MEASURED).verdict is Verdict.MEASURED
    assert line(9.0, Kind.NOT_APPLICABLE).verdict is Verdict.NOT_APPLICABLE


def test_run_passes_only_if_claims_hold_and_controls_are_caught() -> None:
    good = [line(0.1), line(9.0, Kind.CONTROL)]
    assert tally(good).passed
    assert not tally([*good, line(0.6)]).passed
    assert not tally([*good, line(0.1, Kind.CONTROL)]).passed
    assert not tally([]).passed
    assert not tally([line(9.0, Kind.NOT_APPLICABLE)]).passed


def test_measured_and_not_applicable_lines_never_count_as_passed() -> None:
    found = tally([line(0.1), line(9.0, Kind.CONTROL), line(0.0, Kind.MEASURED), line(0.0, Kind.NOT_APPLICABLE)])
    assert found.claims == 1
    assert str(found) == (
        "PASSED: 1 of 1 claims hold; 1 of 1 injected faults detected; 1 measured only; 1 not applicable"
    )


def test_group_with_claims_and_no_control_fails_the_run() -> None:
    found = tally([line(0.1), line(9.0, Kind.CONTROL), line(0.1, group="two")])
    assert found.without_control == ("two",)
    assert not found.passed
    assert "no control in: two" in str(found)
