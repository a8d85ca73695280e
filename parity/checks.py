"""One comparison as a value: where, what, how far apart, how far is allowed. Knows neither side."""

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
    "draws of codebook 0": 0.0,
    "draws of codebooks 1-15": 0.0,
    "codec decoder": 2e-5,
    "codec encoder codes": 0.0,
    "mel": 1e-4,
    "speaker vector": 1e-5,
    "codes spoken": 0.0,
    "samples spoken": 2e-5,
    "ends spoken": 0.0,
}
"""How far Legato may be from the official package, float32 on a CPU.

Codes, ids and draws are counted: none may differ. Logits and hidden states: greatest absolute difference, at
values of order one. Mel: absolute, in natural logarithms. Samples: absolute, of a full scale of one. Speaker vector:
relative to its largest component. Only the order in which the same sums are taken differs between the two sides.
"""


@dataclass(frozen=True, slots=True)
class Check:
    """`error` may be at most `limit`; NaN never passes. `note` says where the first difference is."""

    where: str
    what: str
    error: float
    limit: float
    note: str = ""

    @property
    def passed(self) -> bool:
        return self.error <= self.limit


def near(where: str, what: str, ours: npt.NDArray[Any], theirs: npt.NDArray[Any], *, relative: bool = False) -> Check:
    """Greatest absolute difference; a differing shape or a NaN on either side is an infinite one."""
    limit = LIMITS[what]
    if ours.shape != theirs.shape:
        return Check(where, what, float("inf"), limit, f"shape {ours.shape}, official {theirs.shape}")
    if not ours.size:
        return Check(where, what, float("inf"), limit, "nothing to compare")
    apart = np.abs(ours.astype(np.float64) - theirs.astype(np.float64))
    if not np.isfinite(apart).all():
        return Check(where, what, float("inf"), limit, "not finite")
    worst = np.unravel_index(int(apart.argmax()), apart.shape)
    scale = float(np.abs(theirs).max()) if relative else 1.0
    at = tuple(int(axis) for axis in worst)
    return Check(where, what, float(apart[worst]) / scale, limit, f"at {at}: {ours[worst]:.7g}, {theirs[worst]:.7g}")


def equal(where: str, what: str, ours: npt.NDArray[Any], theirs: npt.NDArray[Any]) -> Check:
    """Number of differing integers, and the first of them."""
    limit = LIMITS[what]
    if ours.shape != theirs.shape:
        return Check(where, what, float("inf"), limit, f"shape {ours.shape}, official {theirs.shape}")
    if not ours.size:
        return Check(where, what, float("inf"), limit, "nothing to compare")
    differing = np.argwhere(ours != theirs)
    if not len(differing):
        return Check(where, what, 0.0, limit)
    first = tuple(int(axis) for axis in differing[0])
    return Check(
        where, what, float(len(differing)), limit, f"first at {first}: {ours[first]}, official {theirs[first]}"
    )


def table(checks: list[Check]) -> str:
    """One line for each kind of comparison: how many, the worst, the limit."""
    lines = [f"{'compared':28} {'number':>6} {'worst':>10} {'allowed':>10}  result"]
    for what in LIMITS:
        those = [check for check in checks if check.what == what]
        if not those:
            continue
        worst = max(those, key=lambda check: check.error if check.error == check.error else float("inf"))
        failed = [check for check in those if not check.passed]
        result = f"{len(failed)} FAILED" if failed else "equal" if worst.limit == 0 else "within"
        lines.append(f"{what:28} {len(those):6} {worst.error:10.2g} {worst.limit:10.2g}  {result}")
    return "\n".join(lines)
