"""Verdicts, and what fails a run: a claim that does not hold, a control that is not caught, a group without one."""

from __future__ import annotations

from legato.verify.compare import Comparison
from legato.verify.lines import CheckLine, Kind, Verdict, Where, tally
from legato.verify.tolerance import Tolerance

WHERE = Where("cpu", "float32", 1, "")


def line(error: float, kind: Kind = Kind.CLAIM, *, group: str = "one", limit: float = 0.5) -> CheckLine:
    return CheckLine(group, "a claim", "here", WHERE, Comparison(error, error, 1), Tolerance(limit, "a reason"), kind)


def test_verdicts() -> None:
    assert line(0.5).verdict is Verdict.EQUAL
    assert line(0.6).verdict is Verdict.DIFFERENT
    assert line(float("nan")).verdict is Verdict.DIFFERENT
    assert line(0.6, Kind.CONTROL).verdict is Verdict.CAUGHT
    assert line(float("inf"), Kind.CONTROL).verdict is Verdict.CAUGHT
    assert line(0.5, Kind.CONTROL).verdict is Verdict.NOT_CAUGHT
    assert line(9.0, Kind.MEASURED).verdict is Verdict.MEASURED
    assert line(9.0, Kind.NOT_APPLICABLE).verdict is Verdict.NOT_APPLICABLE


def test_a_run_passes_only_if_claims_hold_and_controls_are_caught() -> None:
    sound = [line(0.1), line(9.0, Kind.CONTROL)]
    assert tally(sound).passed
    assert not tally([*sound, line(0.6)]).passed
    assert not tally([*sound, line(0.1, Kind.CONTROL)]).passed
    assert not tally([]).passed
    assert not tally([line(9.0, Kind.NOT_APPLICABLE)]).passed


def test_what_is_measured_or_not_applicable_is_never_counted_as_passed() -> None:
    found = tally([line(0.1), line(9.0, Kind.CONTROL), line(0.0, Kind.MEASURED), line(0.0, Kind.NOT_APPLICABLE)])
    assert found.claims == 1
    assert str(found) == ("PASSED: 1 of 1 claims hold; 1 of 1 controls caught; 1 measured only; 1 not applicable")


def test_a_group_that_claims_without_a_control_fails_the_run() -> None:
    found = tally([line(0.1), line(9.0, Kind.CONTROL), line(0.1, group="two")])
    assert found.without_control == ("two",)
    assert not found.passed
    assert "no control in: two" in str(found)
