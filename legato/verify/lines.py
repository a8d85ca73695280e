"""One checked claim as a value, and what a list of them amounts to. Owns no model and measures no time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from legato.verify.compare import Comparison
from legato.verify.tolerance import Tolerance


class Kind(Enum):
    """What a line is for."""

    CLAIM = "claim"
    """Two results that must agree."""
    CONTROL = "control"
    """The same check with a fault put in: it must *not* agree."""
    MEASURED = "measured"
    """An agreement that is promised by nobody: printed, never counted as passed."""
    NOT_APPLICABLE = "not applicable"
    """This checkpoint has no such thing: counted apart, never as passed."""


class Verdict(Enum):
    """What came out."""

    EQUAL = "equal"
    DIFFERENT = "DIFFERENT"
    CAUGHT = "caught"
    NOT_CAUGHT = "NOT CAUGHT"
    MEASURED = "measured"
    NOT_APPLICABLE = "not applicable"


BAD = frozenset({Verdict.DIFFERENT, Verdict.NOT_CAUGHT})
"""What fails a run."""


@dataclass(frozen=True, slots=True)
class Where:
    """On what a line was computed. `path`: which way through the code, where there are several."""

    device: str
    dtype: str
    batch: int
    path: str


@dataclass(frozen=True, slots=True)
class CheckLine:
    """A claim (or the fault of a control), the setting it was checked in, and how far the results were apart."""

    group: str
    claim: str
    setting: str
    where: Where
    comparison: Comparison
    tolerance: Tolerance
    kind: Kind = Kind.CLAIM
    note: str = ""

    @property
    def verdict(self) -> Verdict:
        """A claim holds at or below its tolerance; a control is caught above it."""
        if self.kind is Kind.NOT_APPLICABLE:
            return Verdict.NOT_APPLICABLE
        if self.kind is Kind.MEASURED:
            return Verdict.MEASURED
        within = self.comparison.max_abs <= self.tolerance.limit
        if self.kind is Kind.CONTROL:
            return Verdict.NOT_CAUGHT if within else Verdict.CAUGHT
        return Verdict.EQUAL if within else Verdict.DIFFERENT

    @property
    def bad(self) -> bool:
        """True if this line fails the run."""
        return self.verdict in BAD


@dataclass(frozen=True, slots=True)
class Tally:
    """How many lines came out how. `without_control`: groups that make claims and have no control of their own."""

    verdicts: dict[Verdict, int]
    without_control: tuple[str, ...]

    @property
    def passed(self) -> bool:
        """True if all claims hold, all controls were caught, and no group lacks one."""
        return not any(self.verdicts[each] for each in BAD) and not self.without_control and self.claims > 0

    @property
    def claims(self) -> int:
        return self.verdicts[Verdict.EQUAL] + self.verdicts[Verdict.DIFFERENT]

    @property
    def controls(self) -> int:
        return self.verdicts[Verdict.CAUGHT] + self.verdicts[Verdict.NOT_CAUGHT]

    def __str__(self) -> str:
        shown = [
            f"{self.verdicts[Verdict.EQUAL]} of {self.claims} claims hold",
            f"{self.verdicts[Verdict.CAUGHT]} of {self.controls} controls caught",
        ]
        shown += [f"{self.verdicts[Verdict.MEASURED]} measured only"] * (self.verdicts[Verdict.MEASURED] > 0)
        shown += [f"{self.verdicts[Verdict.NOT_APPLICABLE]} not applicable"] * (
            self.verdicts[Verdict.NOT_APPLICABLE] > 0
        )
        shown += [f"no control in: {', '.join(self.without_control)}"] * bool(self.without_control)
        return f"{'PASSED' if self.passed else 'FAILED'}: {'; '.join(shown)}"


def tally(lines: Sequence[CheckLine]) -> Tally:
    """Count the lines. A group that makes a claim without a control shows nothing, and fails the run."""
    claiming = dict.fromkeys(line.group for line in lines if line.kind is Kind.CLAIM)
    controlled = {line.group for line in lines if line.kind is Kind.CONTROL}
    counts = {verdict: sum(line.verdict is verdict for line in lines) for verdict in Verdict}
    return Tally(counts, tuple(group for group in claiming if group not in controlled))
