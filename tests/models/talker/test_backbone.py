"""The talker with a KV cache equals one call without it, for any slices, batch and slots.

Weights are tiny and random. Negative controls show that the tolerances detect faults.
"""

from __future__ import annotations

from collections.abc import Iterator
from unittest import mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from legato.errors import StateError
from legato.models.talker import state
from legato.models.talker.backbone import Talker
from legato.models.talker.state import KVRows, TalkerCache, poison
from tests.models.tiny_talker import PHONES, make_talker, talker_config

POSITIONS = 24
SLOTS = 5
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-11}


@pytest.fixture(scope="module", params=["row by row", "masked"])
def reading(request: pytest.FixtureRequest) -> Iterator[str]:
    """Both views of the cache: row by row (CPU), and masked with fixed shapes."""
    with mock.patch.object(state, "reads_row_by_row", return_value=request.param == "row by row"):
        yield request.param


def poisoned_cache(talker: Talker, dtype: torch.dtype = torch.float64) -> TalkerCache:
    """A cache filled with NaN, so that reading a position that was not written gives NaN."""
    cache = TalkerCache.allocate(talker.config.stack, SLOTS, POSITIONS, dtype)
    poison(cache, KVRows.of(range(SLOTS)))
    return cache


def inputs(rows: int, length: int, dtype: torch.dtype = torch.float64, seed: int = 3) -> Tensor:
    return torch.randn(rows, length, 32, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def sliced(talker: Talker, cache: TalkerCache, rows: KVRows, x: Tensor, cuts: list[int]) -> Tensor:
    """All hidden states of `x` [B, T, D], computed in slices ending at `cuts`."""
    parts, start = [], 0
    for end in [*cuts, x.shape[1]]:
        starts = torch.full((x.shape[0],), start)
        parts.append(talker.forward_all(cache, rows, x[:, start:end], starts))
        start = end
    return torch.cat(parts, dim=1)


@pytest.mark.usefixtures("reading")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_one_position_at_a_time_equals_one_call(dtype: torch.dtype) -> None:
    talker = make_talker(dtype=dtype)
    x = inputs(2, POSITIONS, dtype)
    with torch.inference_mode():
        whole = talker.forward_uncached(x)
        stepped = sliced(talker, poisoned_cache(talker, dtype), KVRows.of([3, 1]), x, list(range(1, POSITIONS)))
    assert (stepped - whole).abs().max() < TOLERANCE[dtype]
    # Control: without its past, the last position differs.
    with torch.inference_mode():
        alone = talker.forward_uncached(x[:, -1:])
    assert (alone[:, 0] - whole[:, -1]).abs().max() > 0.1


@pytest.mark.usefixtures("reading")
@settings(max_examples=15, deadline=None)
@given(cuts=st.sets(st.integers(1, 16), max_size=5), slots=st.permutations(range(SLOTS)))
def test_random_slices_in_random_slots_equal_one_call(cuts: set[int], slots: list[int]) -> None:
    talker, x = make_talker(dtype=torch.float64), inputs(3, 17)
    with torch.inference_mode():
        whole = talker.forward_uncached(x)
        parts = sliced(talker, poisoned_cache(talker), KVRows.of(slots[:3]), x, sorted(cuts))
    assert (parts - whole).abs().max() < TOLERANCE[torch.float64]


@pytest.mark.usefixtures("reading")
def test_forward_gives_the_last_valid_position_of_forward_all() -> None:
    talker, x = make_talker(dtype=torch.float64), inputs(3, 6)
    starts, lengths = torch.zeros(3, dtype=torch.int64), torch.tensor([6, 1, 4])
    with torch.inference_mode():
        every = talker.forward_all(poisoned_cache(talker), KVRows.of([0, 1, 2]), x, starts, lengths)
        last = talker(poisoned_cache(talker), KVRows.of([0, 1, 2]), x, starts, lengths)
        unpadded = talker(poisoned_cache(talker), KVRows.of([0, 1, 2]), x, starts)
    assert (last - every[torch.arange(3), lengths - 1]).abs().max() < 1e-12
    assert (unpadded[0] - last[0]).abs().max() < 1e-12
    assert (unpadded[1] - last[1]).abs().max() > 1e-2


@pytest.mark.usefixtures("reading")
@settings(max_examples=15, deadline=None)
@given(
    plan=st.lists(st.tuples(st.integers(0, 8), st.integers(1, 7)), min_size=1, max_size=4),
    slots=st.permutations(range(SLOTS)),
    span_slack=st.integers(0, 6),
)
def test_ragged_rows_at_different_positions_equal_each_row_alone(
    plan: list[tuple[int, int]], slots: list[int], span_slack: int
) -> None:
    """Each row has `start` earlier positions and `length` new ones, padded with NaN to the longest."""
    talker = make_talker(dtype=torch.float64)
    rows, data = slots[: len(plan)], inputs(4, POSITIONS)
    cache = poisoned_cache(talker)
    longest = max(length for _, length in plan)
    x = torch.full((len(plan), longest, 32), float("nan"), dtype=torch.float64)
    with torch.inference_mode():
        for index, (start, length) in enumerate(plan):
            x[index, :length] = data[index, start : start + length]
            if start:
                talker(cache, KVRows.of([rows[index]]), data[index : index + 1, :start], torch.tensor([0]))
        before = cache.keys.clone(), cache.values.clone()
        starts, lengths = (torch.tensor(part) for part in zip(*plan, strict=True))
        span = min(POSITIONS, int((starts + lengths).max()) + span_slack)
        hidden = talker(cache, KVRows.of(rows), x, starts, lengths, span=span)
        for index, (start, length) in enumerate(plan):
            whole = talker.forward_uncached(data[index : index + 1, : start + length])
            assert (hidden[index] - whole[0, -1]).abs().max() < TOLERANCE[torch.float64]
    touched = torch.zeros(SLOTS, POSITIONS, dtype=torch.bool)
    for index, (start, length) in enumerate(plan):
        touched[rows[index], start : start + length] = True
    for old, new in zip(before, (cache.keys, cache.values), strict=True):
        same = (old == new) | (old.isnan() & new.isnan())
        assert same.all(dim=(0, 2, 4))[~touched].all(), "a padding position or another slot was written"


@pytest.mark.usefixtures("reading")
def test_padding_may_reach_beyond_the_slot() -> None:
    """A row that fills its slot, next to a longer row: its padding would be beyond the slot."""
    talker, data = make_talker(dtype=torch.float64), inputs(2, POSITIONS)
    cache = poisoned_cache(talker)
    with torch.inference_mode():
        talker(cache, KVRows.of([4]), data[:1, : POSITIONS - 2], torch.tensor([0]))
        x = torch.stack((torch.cat((data[0, -2:], torch.full((6, 32), float("nan")))), data[1, :8]))
        hidden = talker(cache, KVRows.of([4, 0]), x, torch.tensor([POSITIONS - 2, 0]), torch.tensor([2, 8]))
        whole = talker.forward_uncached(data)
    assert (hidden[0] - whole[0, -1]).abs().max() < TOLERANCE[torch.float64]
    assert (hidden[1] - whole[1, 7]).abs().max() < TOLERANCE[torch.float64]


@pytest.mark.usefixtures("reading")
def test_rows_of_length_0_write_nothing() -> None:
    talker, x = make_talker(dtype=torch.float64), inputs(4, 3)
    cache = poisoned_cache(talker)
    x[1:3] = float("nan")
    with torch.inference_mode():
        hidden = talker(cache, KVRows.of([1, 4, 4, 0]), x, torch.tensor([0, 0, 5, 0]), torch.tensor([3, 0, 0, 3]))
        whole = talker.forward_uncached(x)
    assert (hidden[[0, 3]] - whole[[0, 3], -1]).abs().max() < TOLERANCE[torch.float64]
    assert cache.keys[:, 4].isnan().all()
    assert cache.values[:, 4].isnan().all()


@pytest.mark.usefixtures("reading")
def test_reading_slots_by_slice_equals_gathering_them() -> None:
    talker, x = make_talker(dtype=torch.float32), inputs(3, 9, torch.float32)
    rows = KVRows.of([1, 2, 3])
    assert rows.contiguous == slice(1, 4)
    assert KVRows.of([1, 3, 2]).contiguous is None
    with torch.inference_mode():
        by_slice = sliced(talker, poisoned_cache(talker, torch.float32), rows, x, [4, 8])
        by_index = sliced(talker, poisoned_cache(talker, torch.float32), KVRows(rows.index), x, [4, 8])
    assert torch.equal(by_slice, by_index)


@pytest.mark.usefixtures("reading")
@pytest.mark.parametrize(
    "fault", ["row swapped", "start too late", "start too early", "stale position", "no query norm"]
)
def test_control_fault_is_detected(fault: str) -> None:
    """Each fault changes the result by much more than the tolerance, or makes it NaN."""
    talker, x = make_talker(dtype=torch.float64), inputs(2, 10)
    cache, rows, starts, span = poisoned_cache(talker), KVRows.of([0, 1]), torch.tensor([9, 9]), 10
    with torch.inference_mode():
        whole = talker.forward_uncached(x)[:, -1]
        talker(cache, rows, x[:, :9], torch.tensor([0, 0]))
        if fault == "row swapped":
            rows = KVRows.of([1, 0])
        elif fault == "start too late":
            starts, span = starts + 1, 11
        elif fault == "start too early":
            starts = starts - 1
        elif fault == "stale position":
            cache.keys[:, :, :, 5] = cache.keys[:, :, :, 4]
            cache.values[:, :, :, 5] = cache.values[:, :, :, 4]
        elif fault == "no query norm":
            for name, parameter in talker.named_parameters():
                if "q_norm" in name:
                    parameter.fill_(1.0)
        error = (talker(cache, rows, x[:, 9:], starts, span=span) - whole).abs().max()
    assert error.isnan() or error > 1e-4


def test_control_span_that_is_too_short() -> None:
    """With fixed shapes, a `span` that is too short changes the result; row by row, it is not used."""
    talker, x = make_talker(dtype=torch.float64), inputs(1, 10)
    error = {}
    for row_by_row in (True, False):
        with mock.patch.object(state, "reads_row_by_row", return_value=row_by_row), torch.inference_mode():
            cache = poisoned_cache(talker)
            talker(cache, KVRows.of([2]), x[:, :9], torch.tensor([0]))
            hidden = talker(cache, KVRows.of([2]), x[:, 9:], torch.tensor([9]), span=8)
            error[row_by_row] = float((hidden - talker.forward_uncached(x)[:, -1]).abs().max())
    assert error[True] < TOLERANCE[torch.float64]
    assert error[False] > 1e-4


def test_row_that_does_not_fit_its_slot_is_refused() -> None:
    talker, x = make_talker(), inputs(1, 3, torch.float32)
    cache = poisoned_cache(talker, torch.float32)
    fits = f"22 to 25 do not fit slot 3 of {POSITIONS}"
    with mock.patch.object(state, "reads_row_by_row", return_value=True), pytest.raises(StateError, match=fits):
        talker(cache, KVRows.of([3]), x, torch.tensor([POSITIONS - 2]))


@pytest.mark.usefixtures("reading")
def test_row_does_not_depend_on_other_rows() -> None:
    """Same slot and input, other data in the other rows: bit-identical at the same shape."""
    talker, x = make_talker(), inputs(4, 6, torch.float32)
    other = torch.cat((x[:1], 3.0 * inputs(3, 6, torch.float32, seed=9)))
    starts = torch.zeros(4, dtype=torch.int64)
    with torch.inference_mode():
        first = talker(poisoned_cache(talker, torch.float32), KVRows.of([2, 0, 1, 3]), x, starts)
        second = talker(poisoned_cache(talker, torch.float32), KVRows.of([2, 0, 1, 3]), other, starts)
    assert torch.equal(first[0], second[0])
    assert (first[1:] - second[1:]).abs().min(dim=1).values.max() > 0


def test_uncached_call_with_padding_on_either_side() -> None:
    talker, x = make_talker(dtype=torch.float64), inputs(2, 5)
    noise = 10.0 * inputs(2, 3, seed=5)
    left = torch.cat((noise[:1], x[:1]), dim=1)
    right = torch.cat((x[1:], noise[1:]), dim=1)
    valid = torch.tensor([[False] * 3 + [True] * 5, [True] * 5 + [False] * 3])
    with torch.inference_mode():
        plain = talker.forward_uncached(x)
        padded = talker.forward_uncached(torch.cat((left, right)), valid)
        unmasked = talker.forward_uncached(left)
    assert (padded[0, 3:] - plain[0]).abs().max() < TOLERANCE[torch.float64]
    assert (padded[1, :5] - plain[1]).abs().max() < TOLERANCE[torch.float64]
    assert padded.isfinite().all()
    assert (unmasked[0, 3:] - plain[0]).abs().max() > 1e-2


def test_uncached_call_has_gradients_for_every_layer() -> None:
    talker, x = make_talker(talker_config(PHONES)), inputs(2, 5, torch.float32)
    hidden = talker.forward_uncached(x + talker.embed_text(torch.zeros(2, 5, 4, dtype=torch.int64)))
    torch.autograd.backward(talker.first_code_logits(hidden).logsumexp(-1).sum())
    without_gradient = [
        name
        for name, parameter in talker.named_parameters()
        if parameter.grad is None or not parameter.grad.abs().sum() > 0
    ]
    assert without_gradient == ["model.codec_embedding.weight"]


@pytest.mark.usefixtures("reading")
def test_bfloat16_is_close_to_float32_with_the_same_weights() -> None:
    exact, rounded = make_talker(), make_talker().to(torch.bfloat16)
    exact.load_state_dict({name: weight.float() for name, weight in rounded.state_dict().items()})
    x = inputs(2, 20, torch.bfloat16)
    with torch.inference_mode():
        reference = exact.first_code_logits(exact.forward_uncached(x.float())[:, -1])
        cache = TalkerCache.allocate(exact.config.stack, 2, POSITIONS, torch.bfloat16)
        hidden = rounded(cache, KVRows.of([0, 1]), x, torch.tensor([0, 0]))
        logits = rounded.first_code_logits(hidden)
    assert (hidden.dtype, logits.dtype) == (torch.bfloat16, torch.float32)
    assert (logits - reference).abs().max() < 0.05 * reference.abs().max()
