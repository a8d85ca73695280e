"""Sampling noise is a pure function of its key; fixed values guard it across platforms and versions."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from legato.errors import SamplingError
from legato.models.noise import SEED_LIMIT, uniforms

KEYS = st.tuples(st.integers(0, SEED_LIMIT - 1), st.integers(0, 2**32), st.integers(0, 2**32))
KNOWN = (0.3285323147213538, 0.9170725005020688, 0.602666572911484)
KNOWN_SECOND_BLOCK = 0.21345611626169403


@given(key=KEYS, few=st.integers(0, 20), more=st.integers(0, 20))
def test_numbers_are_in_range_and_do_not_depend_on_the_number_of_codebooks(
    key: tuple[int, int, int], few: int, more: int
) -> None:
    numbers = uniforms(*key, few + more)
    assert len(numbers) == few + more
    assert all(0.0 <= number < 1.0 for number in numbers)
    assert numbers[:few] == uniforms(*key, few)


def test_numbers_depend_on_every_part_of_the_key() -> None:
    numbers = [
        number
        for seed, sequence, frame in itertools.product((0, 1, SEED_LIMIT - 1), (0, 1), (0, 1, 2))
        for number in uniforms(seed, sequence, frame, 16)
    ]
    assert len(set(numbers)) == len(numbers) == 3 * 2 * 3 * 16


def test_known_values() -> None:
    assert uniforms(42, 1, 7, 3) == KNOWN
    assert uniforms(42, 1, 7, 10)[8] == KNOWN_SECOND_BLOCK


def test_numbers_are_uniform_and_uncorrelated() -> None:
    """Each tenth contains 1,600 of 16,000 numbers, and neighbours are uncorrelated, within five standard deviations."""
    numbers = [number for frame in range(1000) for number in uniforms(5, 0, frame, 16)]
    for tenth in range(10):
        count = sum(tenth <= 10 * number < tenth + 1 for number in numbers)
        assert abs(count - 1600) < 5 * 38
    covariance = sum((a - 0.5) * (b - 0.5) for a, b in itertools.pairwise(numbers)) / len(numbers)
    assert abs(covariance) < 5 * (1 / 12) / len(numbers) ** 0.5


@pytest.mark.parametrize("seed", [-1, SEED_LIMIT])
def test_seed_out_of_range_is_refused(seed: int) -> None:
    with pytest.raises(SamplingError, match="seed") as caught:
        uniforms(seed, 0, 0, 1)
    assert caught.value.field == "seed"
