"""The talker's KV cache and the type `KVRows` that addresses it."""

from __future__ import annotations

import pytest
import torch

from legato.errors import StateError
from legato.models.codec.state import CodecRows
from legato.models.talker.state import KVRows, TalkerCache, poison
from tests.models.tiny_talker import make_talker, talker_config


@pytest.mark.parametrize("stranger", [torch.tensor([0, 1]), (0, 1), object()])
def test_other_types_of_rows_are_refused(stranger: object) -> None:
    talker, x = make_talker(), torch.zeros(2, 1, 32)
    cache = TalkerCache.allocate(talker.config.stack, 2, 4, torch.float32)
    with pytest.raises(StateError, match="KVRows"):
        talker(cache, stranger, x, torch.tensor([0, 0]))
    with pytest.raises(StateError, match="KVRows"):
        poison(cache, stranger)  # type: ignore[arg-type]


def test_codec_rows_are_refused() -> None:
    cache = TalkerCache.allocate(talker_config().stack, 2, 4, torch.float32)
    with pytest.raises(StateError, match="not CodecRows"):
        poison(cache, CodecRows(torch.tensor([0, 1])))  # type: ignore[arg-type]


def test_kv_rows_must_be_an_int64_vector() -> None:
    with pytest.raises(StateError, match="int64"):
        KVRows(torch.tensor([0.0, 1.0]))
    with pytest.raises(StateError, match="int64"):
        KVRows(torch.tensor([[0, 1]]))


def test_negative_slot_is_refused() -> None:
    with pytest.raises(StateError, match="negative"):
        KVRows.of([0, -1])


def test_bytes_per_position_of_the_official_size() -> None:
    """28 layers, 8 key heads of 128: 112 KiB in bfloat16."""
    cache = TalkerCache(*(torch.zeros(28, 1, 8, 2, 128, dtype=torch.bfloat16) for _ in range(2)))
    assert cache.bytes_per_position == 112 * 1024
    assert (cache.slots, cache.positions) == (1, 2)


def test_poison_fills_the_given_slots_only() -> None:
    cache = TalkerCache.allocate(talker_config().stack, 3, 4, torch.float32)
    poison(cache, KVRows.of([2, 0]))
    for pool in (cache.keys, cache.values):
        assert pool[:, [0, 2]].isnan().all()
        assert (pool[:, 1] == 0).all()
