"""The result of one comparison, the limits, and the table of results. Independent of both sides."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

LIMITS = {
    "token ids": 0.0,
    "prompt rows": 1e-5,
    "text fed": 1e-5,
    "hidden states": 1e-4,
    "logits of codebook 0": 1e-4,
    "logits of codebooks 1-15": 1e-4,
    "codes": 0.0,
    "sampled codes of codebook 0": 0.0,
    "sampled codes of codebooks 1-15": 0.0,
    "codec decoder": 2e-5,
    "codec encoder codes": 0.0,
    "mel": 1e-4,
    "speaker vector": 1e-5,
    "engine codes": 0.0,
    "engine samples": 2e-5,
    "engine finish reasons": 0.0,
}
"""Largest difference between Legato and the official package, float32 on a CPU.

Codes, ids and sampled codes: number of differences. Logits and hidden states: absolute, at values of order one. Mel:
absolute, in natural logarithms. Samples: absolute, full scale is 1. Speaker vector: relative to its largest component.
The two sides differ only in the order of summation.
"""


@dataclass(frozen=True, slots=True)
class Check:
    """Passes if `error` is at most `limit`; NaN never passes. `note` describes the first difference."""

    where: str
    what: str
    error: float
    limit: float
    note: str = ""

    @property
    def passed(self) -> bool:
        return self.error <= self.limit


def near(where: str, what: str, ours: npt.NDArray[Any], theirs: npt.NDArray[Any], *, relative: bool = False) -> Check:
    """Largest absolute difference; infinite for different shapes and for NaN on either side."""
    limit = LIMITS[what]
    if ours.shape != theirs.shape:
        return Check(where, what, float("inf"), limit, f"shape {ours.shape}, official {theirs.shape}")
    if not ours.size:
        return Check(where, what, float("inf"), limit, "nothing to compare")
    distance = np.abs(ours.astype(np.float64) - theirs.astype(np.float64))
    if not np.isfinite(distance).all():
        return Check(where, what, float("inf"), limit, "not finite")
    worst = np.unravel_index(int(distance.argmax()), distance.shape)
    scale = float(np.abs(theirs).max()) if relative else 1.0
    index = tuple(int(axis) for axis in worst)
    return Check(
        where, what, float(distance[worst]) / scale, limit, f"at {index}: {ours[worst]:.7g}, {theirs[worst]:.7g}"
    )


def equal(where: str, what: str, ours: npt.NDArray[Any], theirs: npt.NDArray[Any]) -> Check:
    """Number of different integers; the note has the first."""
    limit = LIMITS[what]
    if ours.shape != theirs.shape:
        return Check(where, what, float("inf"), limit, f"shape {ours.shape}, official {theirs.shape}")
    if not ours.size:
        return Check(where, what, float("inf"), limit, "nothing to compare")
    different = np.argwhere(ours != theirs)
    if not len(different):
        return Check(where, what, 0.0, limit)
    first = tuple(int(axis) for axis in different[0])
    return Check(
        where, what, float(len(different)), limit, f"first at {first}: {ours[first]}, official {theirs[first]}"
    )


def table(checks: list[Check]) -> str:
    """One line per kind of comparison: number, worst error and limit."""
    lines = [f"{'compared':28} {'number':>6} {'worst':>10} {'allowed':>10}  result"]
    for what in LIMITS:
        selected = [check for check in checks if check.what == what]
        if not selected:
            continue
        worst = max(selected, key=lambda check: check.error if check.error == check.error else float("inf"))
        failed = [check for check in selected if not check.passed]
        result = f"{len(failed)} FAILED" if failed else "equal" if worst.limit == 0 else "within"
        lines.append(f"{what:28} {len(selected):6} {worst.error:10.2g} {worst.limit:10.2g}  {result}")
    return "\n".join(lines)
