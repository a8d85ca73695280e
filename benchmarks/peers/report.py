"""Rounds of several systems as tables: real-time factor, first sound, and how many times longer each took than another.

A ratio is taken within a round, where the machine was in one mood for all, and shown with the rounds' spread.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Result:
    """One round of one system. `run`: which call of the script it belongs to."""

    system: str
    variant: str
    version: str
    run: str
    round: int
    threads: int
    packet_frames: int
    first_s: float
    total_s: float
    audio_s: float

    @property
    def name(self) -> str:
        """System and number format."""
        return f"{self.system} {self.version} {self.variant}"

    @property
    def real_time_factor(self) -> float:
        """Seconds of work for a second of sound."""
        return self.total_s / self.audio_s


def spread(values: Sequence[float], digits: int = 2) -> str:
    """The median, with the least and the largest."""
    middle, least, most = statistics.median(values), min(values), max(values)
    return f"{middle:.{digits}f} ({least:.{digits}f}..{most:.{digits}f})"


def system_rows(results: Sequence[Result]) -> list[tuple[str, ...]]:
    """Each system: rounds, real-time factor, seconds to its first samples."""
    rows: list[tuple[str, ...]] = []
    for name in dict.fromkeys(each.name for each in results):
        own = [each for each in results if each.name == name]
        factors, firsts = [each.real_time_factor for each in own], [each.first_s for each in own]
        rows.append((name, str(len(own)), spread(factors), spread(firsts)))
    return sorted(rows, key=lambda row: float(row[2].split()[0]))


def ratio_rows(results: Sequence[Result]) -> list[tuple[str, ...]]:
    """Each peer's real-time factor over that of each Legato, round by round."""
    factor = {(each.name, each.run, each.round): each.real_time_factor for each in results}
    names = list(dict.fromkeys(each.name for each in results))
    ours = [name for name in names if name.startswith("legato ")]
    rows: list[tuple[str, ...]] = []
    for peer in (name for name in names if name not in ours):
        for own in ours:
            pairs = [
                factor[peer, run, at] / mine
                for (name, run, at), mine in factor.items()
                if name == own and (peer, run, at) in factor
            ]
            if pairs:
                rows.append((peer, own, str(len(pairs)), spread(pairs)))
    return rows


def table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def report(results: Sequence[Result]) -> str:
    """Both tables."""
    systems = table(("system", "rounds", "real-time factor", "first samples, s"), system_rows(results))
    ratios = table(("peer", "beside", "rounds", "times as long"), ratio_rows(results))
    return f"{systems}\n\n{ratios}\n"
