"""Comparison of two results of one computation, and the tolerances that they are held to. Pure functions.

Differences are computed in float32 or wider. A tolerance is 0 (the same arithmetic must give the same bits), a fraction
of a scale (the order of summation may differ), or a multiple of the error that a low-precision format itself causes in
the same computation.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from legato.types import Frame

RELATIVE_LIMIT = {torch.float64: 1e-11, torch.float32: 2e-5}
"""Largest error per dtype, as a fraction of the scale: full scale for samples, else the oracle's largest magnitude."""

LOW_PRECISION_FACTOR = 3.0
"""In half precision an early rounding error grows through the network, so no fixed fraction would fit every model."""


@dataclass(frozen=True, slots=True)
class Tolerance:
    """The largest difference that passes, and the reason for this value."""

    limit: float
    reason: str


SAME_BITS = Tolerance(0.0, "same arithmetic on the same shapes: bit-identical")
INTEGERS = Tolerance(0.0, "whole numbers in float32: no rounding")
NO_FAILURE = Tolerance(0.0, "an exception in a check is a failure")
COUNTS = Tolerance(0.0, "counts are equal or not")
TOKENS = Tolerance(0.0, "text tokens are equal or not")
CODES = Tolerance(0.0, "codes are equal or not; seed and noise are fixed")


def of_full_scale(dtype: torch.dtype) -> Tolerance:
    """For samples of a decoder that computes in float32 or float64."""
    limit = RELATIVE_LIMIT[dtype]
    return Tolerance(limit, f"{limit:g} of full scale: the order of summation differs")


def of_scale(dtype: torch.dtype, scale: float) -> Tolerance:
    """For values of any size; `scale` is the oracle's largest magnitude."""
    limit = RELATIVE_LIMIT[dtype]
    return Tolerance(limit * scale, f"{limit:g} of the oracle's largest value: the order of summation differs")


def of_half_precision(cost: float, dtype: torch.dtype) -> Tolerance:
    """`cost`: the largest error of the whole computation in `dtype` against the same weights in float32."""
    return of_low_precision(cost, str(dtype).removeprefix("torch."))


def of_low_precision(cost: float, name: str) -> Tolerance:
    """`cost`: the largest error of the whole computation in the format `name` against float32."""
    return Tolerance(
        LOW_PRECISION_FACTOR * cost,
        f"{LOW_PRECISION_FACTOR:g} times the error of {name} in the whole computation, against float32",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstDifference:
    """The first place where two results differ: the computed quantity, its coordinates, and both values.

    `beyond`: the difference exceeds the limit. If none does, this is the first unequal pair.
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
    """`max_abs` is the largest difference (infinite: different lengths, a non-finite value, or a failure).

    `max_rel` is `max_abs` over the oracle's largest magnitude. `values` is the number of compared pairs. `first` is the
    first difference, None if all pairs are bit-identical.
    """

    max_abs: float
    max_rel: float
    values: int
    first: FirstDifference | None = None


NOTHING_COMPARED = Comparison(0.0, 0.0, 0)


def compare(
    got: Tensor, oracle: Tensor, axes: Sequence[str], *, stage: str, limit: float, frame_samples: int = 0
) -> Comparison:
    """Compare two tensors. `axes` names their axes, outermost first; "first" is in row-major order.

    With `frame_samples` the last axis counts samples, and the first difference also reports its frame.
    """
    if got.shape == oracle.shape:
        return _compare_equal_shapes(got, oracle, axes, stage, limit, frame_samples)
    common = tuple(slice(min(sizes)) for sizes in zip(got.shape, oracle.shape, strict=True))
    overlap = _compare_equal_shapes(got[common], oracle[common], axes, stage, limit, frame_samples)
    first = overlap.first
    if first is None or not first.beyond:
        axis = next(index for index in range(got.dim()) if got.shape[index] != oracle.shape[index])
        first = FirstDifference(
            stage=f"{stage}: number of {axes[axis]}s",
            place=(),
            got=got.shape[axis],
            expected=oracle.shape[axis],
            beyond=True,
        )
    return Comparison(math.inf, math.inf, overlap.values, first)


def compare_codes(got: Sequence[Frame], oracle: Sequence[Frame], *, stage: str = "codes") -> Comparison:
    """Compare frames of codes: error 0 if all are equal, else 1. The distance between two codes has no meaning."""
    width = max((len(frame) for frame in (*got, *oracle)), default=0)
    a, b = (torch.tensor(list(frames), dtype=torch.int64).reshape(len(frames), width) for frames in (got, oracle))
    return equal_or_not(compare(a, b, ("frame", "codebook"), stage=stage, limit=0.0))


def equal_or_not(comparison: Comparison) -> Comparison:
    """For ids: any finite error becomes 1."""
    if math.isinf(comparison.max_abs):
        return comparison
    error = float(comparison.max_abs > 0.0)
    return replace(comparison, max_abs=error, max_rel=error)


def compare_counts(got: int, expected: int, *, stage: str) -> Comparison:
    """Compare two counts; the error is their difference."""
    return compare(torch.tensor([got]), torch.tensor([expected]), ("count",), stage=stage, limit=0.0)


def failure(message: str) -> Comparison:
    """The result of a computation that failed: an infinite error with this message."""
    difference = FirstDifference(stage=message, place=(), got=math.nan, expected=math.nan, beyond=True)
    return Comparison(math.inf, math.inf, 0, difference)


def agreement(got: Sequence[Frame], oracle: Sequence[Frame]) -> str:
    """The number of frames with equal codes, as text."""
    same = sum(a == b for a, b in zip(got, oracle, strict=False))
    return f"codes agree in {same} of {max(len(got), len(oracle))} frames"


def worst(parts: Sequence[Comparison]) -> Comparison:
    """Combine comparisons, in order of time: the largest errors, and the first difference.

    A difference beyond its limit takes precedence over one within it.
    """
    differences = [part.first for part in parts if part.first is not None]
    beyond = [each for each in differences if each.beyond]
    return Comparison(
        max((part.max_abs for part in parts), default=0.0),
        max((part.max_rel for part in parts), default=0.0),
        sum(part.values for part in parts),
        next(iter(beyond or differences), None),
    )


def named(comparison: Comparison, setting: str) -> Comparison:
    """Add `setting` to the stage of the first difference."""
    if comparison.first is None:
        return comparison
    first = replace(comparison.first, stage=f"{comparison.first.stage} ({setting})")
    return replace(comparison, first=first)


def _compare_equal_shapes(
    got: Tensor, oracle: Tensor, axes: Sequence[str], stage: str, limit: float, frame_samples: int
) -> Comparison:
    if got.numel() == 0:
        return NOTHING_COMPARED
    wide = torch.float64 if torch.float64 in (got.dtype, oracle.dtype) or not got.is_floating_point() else torch.float32
    a, b = got.to(wide), oracle.to(wide)
    distance = (a - b).abs()
    max_abs = float(distance.max())
    if not (bool(a.isfinite().all()) and bool(b.isfinite().all())):
        max_abs = math.inf
    scale = float(b.abs().max())
    if max_abs == 0.0:
        max_rel = 0.0
    elif scale > 0.0:
        max_rel = max_abs / scale
    else:
        max_rel = math.inf
    # `~(distance <= limit)` and not `distance > limit`: a NaN must count as beyond every limit.
    first = _first(a, b, ~(distance <= limit), axes, stage, frame_samples, beyond=True)
    if first is None and max_abs > 0.0:
        first = _first(a, b, ~(distance == 0.0), axes, stage, frame_samples, beyond=False)
    return Comparison(max_abs, math.inf if math.isnan(max_rel) else max_rel, got.numel(), first)


def _first(
    got: Tensor, oracle: Tensor, differs: Tensor, axes: Sequence[str], stage: str, frame_samples: int, *, beyond: bool
) -> FirstDifference | None:
    """The first pair at which `differs` is true."""
    flat = differs.flatten().to(torch.uint8)
    at = int(flat.argmax())
    if not int(flat[at]):
        return None
    place: list[tuple[str, int]] = []
    rest = at
    for axis, size in zip(reversed(axes), reversed(got.shape), strict=True):
        rest, index = divmod(rest, size)
        place.insert(0, (axis, index))
    if frame_samples:
        place.insert(-1, ("frame", place[-1][1] // frame_samples))
    return FirstDifference(
        stage=stage,
        place=tuple(place),
        got=float(got.flatten()[at]),
        expected=float(oracle.flatten()[at]),
        beyond=beyond,
    )
