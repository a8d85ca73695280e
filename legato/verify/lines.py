"""One checked claim as a value, and how many of them are shown. Owns no model and measures no time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.table import Table


@dataclass(frozen=True, slots=True)
class CheckLine:
    """A claim, its largest error against the oracle and its tolerance, both in units of full scale.

    A control is the same check with a fault put in: it passes when the error is *above* the tolerance.
    """

    claim: str
    setting: str
    dtype: str
    error: float
    tolerance: float
    control: bool = False

    @property
    def passed(self) -> bool:
        """Whether the claim holds, or the control was caught."""
        return self.error > self.tolerance if self.control else self.error <= self.tolerance


def check_table(lines: Sequence[CheckLine], title: str) -> Table:
    """The lines as a table for a terminal: claims first, controls behind them."""
    table = Table(title=title)
    for heading in ("check", "setting", "dtype", "max error", "tolerance", "result"):
        table.add_column(heading, justify="right" if heading in ("max error", "tolerance") else "left")
    for line in sorted(lines, key=lambda each: each.control):
        good, bad = ("caught", "NOT CAUGHT") if line.control else ("equal", "DIFFERENT")
        result = f"[green]{good}[/]" if line.passed else f"[bold red]{bad}[/]"
        claim = f"control: {line.claim}" if line.control else line.claim
        table.add_row(claim, line.setting, line.dtype, f"{line.error:.2e}", f"{line.tolerance:.1e}", result)
    return table
