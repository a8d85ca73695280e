"""The pool of codec histories: gather, scatter, reset, poison and snapshots."""

from __future__ import annotations

import pytest
import torch

from legato.errors import StateError
from legato.models.codec.state import CodecHistory, CodecRows, CodecStatePool, join_rows
from legato.models.talker.state import KVRows
from tests.models.codec.tiny_codec import tiny_decoder

DECODER = tiny_decoder(dtype=torch.float32)


def filled(values: list[float]) -> CodecHistory:
    """A history whose row b holds `values[b]` everywhere."""

    def fill(tensor: torch.Tensor) -> torch.Tensor:
        shape = [-1] + [1] * (tensor.dim() - 1)
        return torch.tensor(values, dtype=tensor.dtype).view(shape).expand_as(tensor).clone()

    return DECODER.initial_history(len(values)).map(fill)


def value_of(history: CodecHistory) -> list[float]:
    """The value of each row; fails if a row has several."""
    found = []
    for row in range(history.rows):
        values = {float(each) for tensor in history.tensors() for each in tensor[row].flatten().tolist()}
        assert len(values) == 1
        found.append(values.pop())
    return found


def test_scatter_writes_the_given_slots_only() -> None:
    pool = CodecStatePool(DECODER.initial_history(5))
    pool.scatter(CodecRows.of([3, 0]), filled([7, 8]))
    pool.scatter(CodecRows.of([1]), filled([9]))
    assert value_of(pool.gather(CodecRows.of([0, 1, 3]))) == [8, 9, 7]
    pool.reset(CodecRows.of([1]))
    assert value_of(pool.gather(CodecRows.of([3, 1, 0]))) == [7, 0, 8]


def test_slots_are_poison_until_reset_and_after_poison() -> None:
    pool = CodecStatePool(DECODER.initial_history(2))
    for _ in range(2):
        poisoned = pool.gather(CodecRows.of([1]))
        assert all(bool(tensor.isnan().all()) for tensor in poisoned.tensors() if tensor.is_floating_point())
        pool.reset(CodecRows.of([1]))
        assert value_of(pool.gather(CodecRows.of([1]))) == [0]
        pool.poison(CodecRows.of([1]))


def test_gathered_rows_are_copies() -> None:
    pool = CodecStatePool(DECODER.initial_history(2))
    pool.scatter(CodecRows.of([0, 1]), filled([1, 2]))
    kept = pool.snapshot(CodecRows.of([0]))
    pool.poison(CodecRows.of([0]))
    assert value_of(kept) == [1]
    pool.restore(CodecRows.of([0]), kept)
    pool.restore(CodecRows.of([1]), kept)
    assert value_of(pool.gather(CodecRows.of([0, 1]))) == [1, 1]


def test_pool_copies_its_initial_storage() -> None:
    given = filled([5, 5])
    pool = CodecStatePool(given)
    pool.reset(CodecRows.of([0]))
    assert value_of(given) == [5, 5]


def test_rows_of_another_pool_are_refused() -> None:
    pool = CodecStatePool(DECODER.initial_history(2))
    with pytest.raises(StateError, match="needs CodecRows, not KVRows"):
        pool.gather(KVRows.of([0]))  # type: ignore[arg-type]
    with pytest.raises(StateError, match="needs CodecRows, not Tensor"):
        pool.reset(torch.tensor([0]))  # type: ignore[arg-type]


def test_bad_rows_are_refused() -> None:
    with pytest.raises(StateError, match="occurs twice"):
        CodecRows.of([1, 2, 1])
    with pytest.raises(StateError, match="negative"):
        CodecRows.of([0, -1])
    with pytest.raises(StateError, match="int64"):
        CodecRows(torch.tensor([1, 2], dtype=torch.int32))
    with pytest.raises(StateError, match="int64"):
        CodecRows(torch.tensor([[1]]))


def test_history_that_does_not_fit_is_refused() -> None:
    pool = CodecStatePool(DECODER.initial_history(3))
    with pytest.raises(StateError, match="2 histories were given for 1 slots"):
        pool.scatter(CodecRows.of([0]), filled([1, 2]))
    with pytest.raises(StateError, match="does not fit"):
        pool.scatter(CodecRows.of([0]), DECODER.initial_history(1, torch.float64))
    with pytest.raises(StateError, match="exactly one slot, not 2"):
        pool.snapshot(CodecRows.of([0, 1]))


def test_select_and_join_are_inverse() -> None:
    history = filled([4, 5, 6])
    assert value_of(history.select([2, 0])) == [6, 4]
    assert value_of(join_rows([history.select([2]), history.select([0, 1])])) == [6, 4, 5]


def test_row_bytes() -> None:
    history = DECODER.initial_history(3)
    total = sum(tensor.numel() * tensor.element_size() for tensor in history.tensors())
    assert history.row_bytes * 3 == total
    assert CodecStatePool(history).slot_bytes == history.row_bytes
