"""How far two results may be apart, and why: one table of limits, each with its reason. Owns nothing, computes nothing.

A limit is either 0 (the same arithmetic must give the same bits), a share of a scale (sums may be taken in another
order), or a multiple of what a half-precision format itself costs the same computation.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

SHARE = {torch.float64: 1e-11, torch.float32: 2e-5}
"""Largest error by dtype, as a share of the scale: of full scale for samples, else of the oracle's largest value."""
HALF_PRECISION_FACTOR = 3.0
"""In half precision a rounding early in a network grows on its way through it, so no share would fit every model."""


@dataclass(frozen=True, slots=True)
class Tolerance:
    """The largest difference that passes, and where the figure comes from."""

    limit: float
    reason: str


SAME_BITS = Tolerance(0.0, "the same arithmetic on the same shapes: the same bits")
INTEGERS = Tolerance(0.0, "whole numbers in float32: nothing is rounded")
NO_FAILURE = Tolerance(0.0, "a check that breaks has failed")
COUNTS = Tolerance(0.0, "counts")
TOKENS = Tolerance(0.0, "text tokens are equal or not")
CODES = Tolerance(0.0, "codes are equal or not; seed and noise are fixed")


def of_full_scale(dtype: torch.dtype) -> Tolerance:
    """For samples of a decoder that computes in float32 or float64."""
    share = SHARE[dtype]
    return Tolerance(share, f"{share:g} of full scale: sums are taken in another order")


def of_scale(dtype: torch.dtype, scale: float) -> Tolerance:
    """For values of any size; `scale` is the oracle's largest magnitude."""
    share = SHARE[dtype]
    return Tolerance(share * scale, f"{share:g} of the oracle's largest value: sums are taken in another order")


def of_half_precision(cost: float, dtype: torch.dtype) -> Tolerance:
    """`cost`: the largest error of the whole computation in `dtype` against the same weights in float32."""
    return of_rounding(cost, str(dtype).removeprefix("torch."))


def of_rounding(cost: float, name: str) -> Tolerance:
    """`cost`: the largest error of the whole computation with what `name` rounds, against the same weights without."""
    return Tolerance(
        HALF_PRECISION_FACTOR * cost,
        f"{HALF_PRECISION_FACTOR:g} times what {name} costs the whole computation against float32",
    )
