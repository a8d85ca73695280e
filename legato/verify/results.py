"""Results of checks: one line of the report, the tally of a list of lines, and the report of a run.

Plain values; `report` formats them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from legato.verify.compare import Comparison, Tolerance


class Kind(Enum):
    """The purpose of a check."""

    CLAIM = "claim"
    """Two results that must agree."""
    CONTROL = "control"
    """The same comparison with an injected fault: the results must *not* agree."""
    MEASURED = "measured"
    """A comparison whose agreement is not guaranteed: reported, but not counted as passed."""
    NOT_APPLICABLE = "not applicable"
    """The checkpoint or device lacks the feature: counted separately, not as passed."""


class Verdict(Enum):
    """The outcome of a check."""

    EQUAL = "equal"
    DIFFERENT = "DIFFERENT"
    DETECTED = "detected"
    NOT_DETECTED = "NOT DETECTED"
    MEASURED = "measured"
    NOT_APPLICABLE = "not applicable"


BAD = frozenset({Verdict.DIFFERENT, Verdict.NOT_DETECTED})
"""Verdicts that fail a run."""


@dataclass(frozen=True, slots=True)
class ExecutionInfo:
    """How a result was computed. `path` names the code path if there are several."""

    device: str
    dtype: str
    batch: int
    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckLine:
    """One line of the report: a claim (or the fault of a control), its setting, and the size of the difference."""

    group: str
    claim: str
    setting: str
    execution: ExecutionInfo
    comparison: Comparison
    tolerance: Tolerance
    kind: Kind = Kind.CLAIM
    note: str = ""

    @property
    def verdict(self) -> Verdict:
        """A claim holds if the difference is within the tolerance. A fault is detected if the difference exceeds it."""
        if self.kind is Kind.NOT_APPLICABLE:
            return Verdict.NOT_APPLICABLE
        if self.kind is Kind.MEASURED:
            return Verdict.MEASURED
        within = self.comparison.max_abs <= self.tolerance.limit
        if self.kind is Kind.CONTROL:
            return Verdict.NOT_DETECTED if within else Verdict.DETECTED
        return Verdict.EQUAL if within else Verdict.DIFFERENT

    @property
    def bad(self) -> bool:
        """True if this line fails the run."""
        return self.verdict in BAD


@dataclass(frozen=True, slots=True)
class Tally:
    """Number of lines per verdict. `without_control`: groups that make claims and have no control."""

    verdicts: dict[Verdict, int]
    without_control: tuple[str, ...]

    @property
    def passed(self) -> bool:
        """True if all claims hold, all injected faults are detected, and every group with claims has a control."""
        return not any(self.verdicts[each] for each in BAD) and not self.without_control and self.claims > 0

    @property
    def claims(self) -> int:
        return self.verdicts[Verdict.EQUAL] + self.verdicts[Verdict.DIFFERENT]

    @property
    def controls(self) -> int:
        return self.verdicts[Verdict.DETECTED] + self.verdicts[Verdict.NOT_DETECTED]

    def __str__(self) -> str:
        parts = [
            f"{self.verdicts[Verdict.EQUAL]} of {self.claims} claims hold",
            f"{self.verdicts[Verdict.DETECTED]} of {self.controls} injected faults detected",
        ]
        if self.verdicts[Verdict.MEASURED]:
            parts.append(f"{self.verdicts[Verdict.MEASURED]} measured only")
        if self.verdicts[Verdict.NOT_APPLICABLE]:
            parts.append(f"{self.verdicts[Verdict.NOT_APPLICABLE]} not applicable")
        if self.without_control:
            parts.append(f"no control in: {', '.join(self.without_control)}")
        return f"{'PASSED' if self.passed else 'FAILED'}: {'; '.join(parts)}"


def tally(lines: Sequence[CheckLine]) -> Tally:
    """Count the lines. A group with claims but without a control fails the run, because it may not detect faults."""
    claiming = dict.fromkeys(line.group for line in lines if line.kind is Kind.CLAIM)
    controlled = {line.group for line in lines if line.kind is Kind.CONTROL}
    counts = {verdict: sum(line.verdict is verdict for line in lines) for verdict in Verdict}
    return Tally(counts, tuple(group for group in claiming if group not in controlled))


@dataclass(frozen=True, slots=True)
class Report:
    """All lines of a run, and its metadata (model, device, dtypes, seed, ...) as names and values in order."""

    metadata: tuple[tuple[str, str], ...]
    lines: tuple[CheckLine, ...]

    @property
    def tally(self) -> Tally:
        return tally(self.lines)

    @property
    def passed(self) -> bool:
        return self.tally.passed
