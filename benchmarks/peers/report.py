"""Tables of the rounds of several systems: RTF, time to first audio, and ratios between systems.

A ratio is taken within a round, in which all systems ran under the same load of the machine, and is shown with its
spread over the rounds.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Result:
    """One round of one system. `run` identifies the call of the script."""

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
        """System, version and variant."""
        return f"{self.system} {self.version} {self.variant}"

    @property
    def real_time_factor(self) -> float:
        """RTF: processing time per second of audio."""
        return self.total_s / self.audio_s


def spread(values: Sequence[float], digits: int = 2) -> str:
    """The median with minimum and maximum."""
    median, minimum, maximum = statistics.median(values), min(values), max(values)
    return f"{median:.{digits}f} ({minimum:.{digits}f}..{maximum:.{digits}f})"


def system_rows(results: Sequence[Result]) -> list[tuple[str, ...]]:
    """One row per system, fastest first: rounds, RTF, TTFA in seconds."""
    rows: list[tuple[str, ...]] = []
    for name in dict.fromkeys(each.name for each in results):
        own = [each for each in results if each.name == name]
        factors, firsts = [each.real_time_factor for each in own], [each.first_s for each in own]
        rows.append((name, str(len(own)), spread(factors), spread(firsts)))
    return sorted(rows, key=lambda row: float(row[2].split()[0]))


def ratio_rows(results: Sequence[Result]) -> list[tuple[str, ...]]:
    """The RTF of each peer divided by that of each Legato variant in the same round."""
    factor = {(each.name, each.run, each.round): each.real_time_factor for each in results}
    names = list(dict.fromkeys(each.name for each in results))
    legato = [name for name in names if name.startswith("legato ")]
    rows: list[tuple[str, ...]] = []
    for peer in (name for name in names if name not in legato):
        for own in legato:
            pairs = [
                factor[peer, run, index] / own_factor
                for (name, run, index), own_factor in factor.items()
                if name == own and (peer, run, index) in factor
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
    systems = table(("system", "rounds", "RTF", "TTFA, s"), system_rows(results))
    ratios = table(("peer", "compared with", "rounds", "RTF ratio"), ratio_rows(results))
    return f"{systems}\n\n{ratios}\n"
