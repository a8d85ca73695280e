"""Counts of values in fixed bins, with their sum: what can be added up over engines and exported as it is.

Owns its counts for as long as whoever observes wants them. Knows no clock and no meaning of its values.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
RATIO = (0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9, 1.0, 1.2, 1.5, 2.0, 3.0, 5.0)
ROWS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0)


@dataclass(frozen=True, slots=True)
class HistogramValue:
    """A histogram at one instant. `counts[i]` values were at most `bounds[i]` and above the bound before it.

    There is one count more than bounds: that of the values above the last.
    """

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    total: float

    @property
    def count(self) -> int:
        """Values observed."""
        return sum(self.counts)

    @property
    def mean(self) -> float:
        """Their mean; 0 where there is none."""
        return self.total / self.count if self.count else 0.0

    def at_most(self, share: float) -> float:
        """The smallest bound that `share` (0 to 1) of the values do not exceed; infinity above the last bound."""
        needed, seen = share * self.count, 0
        for bound, count in zip(self.bounds, self.counts, strict=False):
            seen += count
            if seen >= needed:
                return bound
        return float("inf")


class Histogram:
    """A histogram that is being filled."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._total = 0.0

    def observe(self, value: float) -> None:
        """Count `value`."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._total += value

    def value(self) -> HistogramValue:
        """What was counted so far."""
        return HistogramValue(self._bounds, tuple(self._counts), self._total)
