"""Two results of one computation, compared: how far apart they are, and where they first part. Pure functions.

Owns nothing and knows no model: tensors in, a value out. Differences are taken in float32 at least.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from legato.flow import Frame

INFINITE = float("inf")


@dataclass(frozen=True, slots=True)
class FirstDifference:
    """The first place where two results differ: what was computed there, its coordinates, and both values.

    `beyond`: the difference exceeds the limit. Where none does, the first unequal pair is given, which rounding made.
    """

    stage: str
    place: tuple[tuple[str, int], ...]
    got: float
    expected: float
    beyond: bool

    def __str__(self) -> str:
        if math.isnan(self.got) and math.isnan(self.expected):
            return self.stage
        at = ", ".join(f"{axis} {index}" for axis, index in self.place)
        return f"{self.stage}{': ' if at else ''}{at}: {self.got:.9g}, not {self.expected:.9g}"


@dataclass(frozen=True, slots=True)
class Comparison:
    """`max_abs` is the largest difference (infinite: another length, a value that is not finite, or a failure).

    `max_rel` is `max_abs` over the largest magnitude of the oracle. `first` holds the first difference, or nothing
    where all `values` pairs are equal to the bit.
    """

    max_abs: float
    max_rel: float
    values: int
    first: tuple[FirstDifference, ...] = ()


def compare(
    got: Tensor, oracle: Tensor, axes: Sequence[str], *, stage: str, limit: float, frame_samples: int = 0
) -> Comparison:
    """Compare tensors whose axes are called `axes`, in the order in which "first" is meant (row, then time, ...).

    With `frame_samples` the last axis counts samples, and the frame of the first difference is given, too.
    """
    if got.shape == oracle.shape:
        return _compare_equal_shapes(got, oracle, axes, stage, limit, frame_samples)
    common = [slice(min(mine, its)) for mine, its in zip(got.shape, oracle.shape, strict=True)]
    inside = _compare_equal_shapes(got[tuple(common)], oracle[tuple(common)], axes, stage, limit, frame_samples)
    axis = next(at for at in range(got.dim()) if got.shape[at] != oracle.shape[at])
    lengths = FirstDifference(f"{stage}: number of {axes[axis]}s", (), got.shape[axis], oracle.shape[axis], beyond=True)
    early = tuple(each for each in inside.first if each.beyond)
    return Comparison(INFINITE, INFINITE, inside.values, early or (lengths,))


def compare_codes(got: Sequence[Frame], oracle: Sequence[Frame], *, stage: str = "codes") -> Comparison:
    """Frames of codes, which are equal (error 0) or not (error 1): how far apart two codes are means nothing."""
    width = max((len(frame) for frame in (*got, *oracle)), default=0)
    mine, its = (torch.tensor(list(frames), dtype=torch.int64).reshape(len(frames), width) for frames in (got, oracle))
    return equal_or_not(compare(mine, its, ("frame", "codebook"), stage=stage, limit=0.0))


def equal_or_not(comparison: Comparison) -> Comparison:
    """For names in the form of numbers: any finite error is 1."""
    if math.isinf(comparison.max_abs):
        return comparison
    error = float(comparison.max_abs > 0.0)
    return replace(comparison, max_abs=error, max_rel=error)


def compare_counts(got: int, expected: int, *, stage: str) -> Comparison:
    """Two counts, which are equal or not."""
    return compare(torch.tensor([got]), torch.tensor([expected]), ("count",), stage=stage, limit=0.0)


def failure(what: str) -> Comparison:
    """A result that does not exist, because its computation failed."""
    nan = float("nan")
    return Comparison(INFINITE, INFINITE, 0, (FirstDifference(what, (), nan, nan, beyond=True),))


def agreement(got: Sequence[Frame], oracle: Sequence[Frame]) -> str:
    """In how many frames two runs have the same codes, in words."""
    same = sum(mine == its for mine, its in zip(got, oracle, strict=False))
    return f"codes agree in {same} of {max(len(got), len(oracle))} frames"


def worst(parts: Sequence[Comparison]) -> Comparison:
    """Many comparisons as one: the largest errors, and the first difference of the first part that has one.

    Parts come in the order of time; a difference beyond its limit goes before any that rounding made.
    """
    found = [each for part in parts for each in part.first]
    first = next((each for each in found if each.beyond), found[0] if found else None)
    return Comparison(
        max((part.max_abs for part in parts), default=0.0),
        max((part.max_rel for part in parts), default=0.0),
        sum(part.values for part in parts),
        (first,) if first else (),
    )


def named(comparison: Comparison, setting: str) -> Comparison:
    """The same, with the first difference's stage told apart by `setting`."""
    return replace(
        comparison, first=tuple(replace(each, stage=f"{each.stage} ({setting})") for each in comparison.first)
    )


def _compare_equal_shapes(
    got: Tensor, oracle: Tensor, axes: Sequence[str], stage: str, limit: float, frame_samples: int
) -> Comparison:
    if got.numel() == 0:
        return Comparison(0.0, 0.0, 0)
    wide = torch.float64 if torch.float64 in (got.dtype, oracle.dtype) or not got.is_floating_point() else torch.float32
    mine, its = got.to(wide), oracle.to(wide)
    # Not `abs() <= limit` the other way round: a NaN is beyond every limit.
    apart = (mine - its).abs()
    largest = float(apart.max())
    if not (bool(mine.isfinite().all()) and bool(its.isfinite().all())):
        largest = INFINITE
    scale = float(its.abs().max())
    relative = 0.0 if largest == 0.0 else largest / scale if scale > 0.0 else INFINITE
    first = _first(mine, its, ~(apart <= limit), axes, stage, frame_samples, beyond=True)
    if not first and largest > 0.0:
        first = _first(mine, its, ~(apart == 0.0), axes, stage, frame_samples, beyond=False)
    return Comparison(largest, INFINITE if math.isnan(relative) else relative, got.numel(), first)


def _first(
    got: Tensor, oracle: Tensor, differs: Tensor, axes: Sequence[str], stage: str, frame_samples: int, *, beyond: bool
) -> tuple[FirstDifference, ...]:
    flat = differs.flatten().to(torch.uint8)
    at = int(flat.argmax())
    if not int(flat[at]):
        return ()
    place: list[tuple[str, int]] = []
    rest = at
    for axis, size in zip(reversed(axes), reversed(got.shape), strict=True):
        rest, index = divmod(rest, size)
        place.insert(0, (axis, index))
    if frame_samples:
        place.insert(-1, ("frame", place[-1][1] // frame_samples))
    pair = float(got.flatten()[at]), float(oracle.flatten()[at])
    return (FirstDifference(stage, tuple(place), *pair, beyond=beyond),)
