"""Comparisons report the largest error and the first difference; NaN, wrong lengths and failures never pass."""

from __future__ import annotations

import math

import pytest
import torch

from legato.verify.compare import (
    agreement,
    compare,
    compare_codes,
    compare_counts,
    failure,
    named,
    worst,
)


def test_bit_identical_values_have_no_first_difference() -> None:
    values = torch.tensor([[0.5, -0.25]])
    found = compare(values, values.clone(), ("row", "sample"), stage="samples", limit=0.0)
    assert (found.max_abs, found.max_rel, found.values, found.first) == (0.0, 0.0, 2, None)


def test_first_difference_beyond_the_limit_has_frame_sample_and_both_values() -> None:
    oracle = torch.zeros(1, 12)
    oracle[0, 0] = 2.0
    got = oracle.clone()
    got[0, 3] = 1e-6
    got[0, 7] = 0.5
    got[0, 9] = -1.0
    found = compare(got, oracle, ("row", "sample"), stage="samples", limit=1e-3, frame_samples=4)
    assert (found.max_abs, found.max_rel) == (1.0, 0.5)
    first = found.first
    assert first is not None
    assert first.place == (("row", 0), ("frame", 1), ("sample", 7))
    assert (first.got, first.expected, first.beyond) == (0.5, 0.0, True)
    assert str(first) == "samples: row 0, frame 1, sample 7: 0.5, not 0"
    inside = compare(got, oracle, ("row", "sample"), stage="samples", limit=2.0, frame_samples=4)
    assert inside.first is not None
    assert inside.first.place[-1] == ("sample", 3)
    assert not inside.first.beyond


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_non_finite_value_on_either_side_is_an_infinite_error(value: float) -> None:
    bad, good = torch.tensor([value]), torch.tensor([0.0])
    for pair in ((bad, good), (good, bad), (bad, bad)):
        assert compare(*pair, axes=("sample",), stage="samples", limit=1.0).max_abs == math.inf


def test_different_length_is_an_infinite_error_naming_the_axis() -> None:
    found = compare(torch.zeros(1, 3), torch.zeros(1, 4), ("row", "sample"), stage="samples", limit=1.0)
    assert found.max_abs == math.inf
    assert str(found.first) == "samples: number of samples: 3, not 4"
    early = compare(torch.ones(1, 3), torch.zeros(1, 4), ("row", "sample"), stage="samples", limit=0.5)
    assert early.first is not None
    assert early.first.place == (("row", 0), ("sample", 0))


def test_half_precision_is_compared_in_float32() -> None:
    found = compare(torch.tensor([1.0], dtype=torch.bfloat16), torch.tensor([1.001]), ("at",), stage="s", limit=0.0)
    assert found.max_abs == pytest.approx(0.001, rel=1e-3)


def test_codes_are_equal_or_not() -> None:
    frames = [(1, 2), (3, 4)]
    assert compare_codes(frames, frames).max_abs == 0.0
    found = compare_codes([(1, 2), (3, 40)], frames)
    assert found.max_abs == 1.0
    assert found.first is not None
    assert found.first.place == (("frame", 1), ("codebook", 1))
    assert (found.first.got, found.first.expected) == (40.0, 4.0)
    assert compare_codes(frames[:1], frames).max_abs == math.inf
    assert compare_codes([], []).max_abs == 0.0
    assert compare_codes([], frames).max_abs == math.inf
    assert agreement(frames[:1], frames) == "codes agree in 1 of 2 frames"


def test_counts_and_failures() -> None:
    assert compare_counts(3, 3, stage="steps").max_abs == 0.0
    assert compare_counts(5, 3, stage="steps").max_abs == 2.0
    assert failure("it broke").max_abs == math.inf


def test_worst_keeps_the_first_difference_beyond_its_limit() -> None:
    rounding = compare(torch.tensor([1.1]), torch.tensor([1.0]), ("at",), stage="a", limit=1.0)
    beyond = named(compare(torch.tensor([3.0]), torch.tensor([2.0]), ("at",), stage="b", limit=0.1), "late")
    found = worst([rounding, beyond])
    assert found.max_abs == 1.0
    assert found.values == 2
    assert found.first is not None
    assert found.first.stage == "b (late)"
    assert worst([rounding]).first == rounding.first
    assert worst([]).max_abs == 0.0
