"""Leases: epochs, release, and NaN in free slots."""

from __future__ import annotations

import pytest
import torch

from legato.engine.codec_state import CodecPool
from legato.engine.kv_cache import KVPool
from legato.engine.leases import CodecLease, KVLease
from legato.errors import StateError
from legato.models.codec.state import CodecStatePool
from legato.models.talker.state import TalkerCache
from legato.types import SequenceId, StreamId
from tests.engine.tiny import tiny_decoder
from tests.models.tiny_talker import stack


def kv_pool(slots: int = 2) -> KVPool:
    return KVPool(TalkerCache.allocate(stack(), slots, 16, torch.float32), poison=True)


def codec_pool(slots: int = 2) -> CodecPool:
    return CodecPool(CodecStatePool(tiny_decoder().initial_history(slots)))


def test_slots_are_leased_once_and_released() -> None:
    pool = kv_pool()
    first, second = pool.acquire(SequenceId(1)), pool.acquire(SequenceId(2))
    assert {first.slot, second.slot} == {0, 1}
    with pytest.raises(StateError, match="no free slot: all 2 are leased"):
        pool.acquire(SequenceId(3))
    pool.release(first)
    assert not pool.all_free
    pool.release(second)
    assert pool.all_free


def test_stale_lease_is_refused_after_slot_is_leased_again() -> None:
    pool = kv_pool(1)
    stale = pool.acquire(SequenceId(1))
    pool.release(stale)
    for use in (pool.release, lambda lease: pool.rows([lease])):
        with pytest.raises(StateError, match="stale lease"):
            use(stale)
    fresh = pool.acquire(SequenceId(2))
    assert fresh.slot == stale.slot
    with pytest.raises(StateError, match="stale lease"):
        pool.rows([stale])
    assert pool.rows([fresh]).index.tolist() == [0]


def test_each_pool_refuses_leases_of_the_other() -> None:
    kv, codec = kv_pool(), codec_pool()
    talker_lease: object = kv.acquire(SequenceId(0))
    codec_lease: object = codec.acquire(StreamId(0))
    assert isinstance(talker_lease, KVLease)
    assert isinstance(codec_lease, CodecLease)
    with pytest.raises(StateError, match="expected a KVLease, not CodecLease"):
        kv.rows([codec_lease])  # type: ignore[list-item]
    with pytest.raises(StateError, match="expected a CodecLease, not KVLease"):
        codec.gather([talker_lease])  # type: ignore[list-item]


def test_free_slots_are_nan() -> None:
    pool = kv_pool()
    assert bool(pool.cache.keys.isnan().all())
    lease = pool.acquire(SequenceId(0))
    pool.cache.keys[:, lease.slot] = 0.0
    pool.release(lease)
    assert bool(pool.cache.keys.isnan().all())


def test_leased_codec_slot_starts_empty() -> None:
    pool = codec_pool(1)
    decoder = tiny_decoder()
    codes = torch.ones(1, 3, decoder.config.num_quantizers, dtype=torch.long)
    received = []
    for stream in range(2):
        lease = pool.acquire(StreamId(stream))
        samples, history = decoder(pool.gather([lease]), codes)
        pool.scatter([lease], history)
        received.append(samples)
        pool.release(lease)
    assert torch.equal(received[0], received[1])
    assert pool.all_free


def test_codec_slot_can_start_from_a_history() -> None:
    pool = codec_pool(2)
    decoder = tiny_decoder()
    codes = torch.arange(6 * decoder.config.num_quantizers).reshape(1, 6, -1) % decoder.config.codebook_size
    whole, _ = decoder(decoder.initial_history(1), codes)
    _, after = decoder(decoder.initial_history(1), codes[:, :4])
    lease = pool.acquire(StreamId(0), after)
    rest, _ = decoder(pool.gather([lease]), codes[:, 4:])
    expected = whole[:, 4 * decoder.frame_samples :]
    torch.testing.assert_close(rest, expected, atol=1e-5, rtol=0)
    fresh = pool.acquire(StreamId(1))
    dropped, _ = decoder(pool.gather([fresh]), codes[:, 4:])
    assert (dropped - expected).abs().max() > 1e-3
