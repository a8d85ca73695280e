"""KV cache of the talker: one slot for each sequence, and a prefix cache for prompts.

Both live as long as the engine and are accessed only by its thread. Only `KVPool` creates `KVLease` objects. With
`poison`, all positions of a free slot are NaN, which exposes reads without a lease.

Prefix cache: prompts with the same cloned voice or the same instruction start with the same rows. Keys and values of
these positions do not depend on later ones. They are copied from the slot when they have been computed, and copied
into the slot of the next sequence with the same prefix. The cache key is the content (digest of the voice, and the
prompt rows), not a name, so two voices with the same name cannot be confused.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from legato.engine.leases import KVLease, SlotAllocator
from legato.errors import StateError
from legato.models.talker.state import KVRows, TalkerCache, poison
from legato.types import PromptPlan, PromptRow, SequenceId


@dataclass(frozen=True, slots=True)
class KVCopy:
    """Keys and values of the first P positions of a sequence, each [L, H_kv, P, head_dim]. Read-only."""

    keys: Tensor
    values: Tensor

    @property
    def bytes(self) -> int:
        """Size of both tensors."""
        return sum(each.numel() * each.element_size() for each in (self.keys, self.values))


class KVPool:
    """Leases of KV slots."""

    def __init__(self, cache: TalkerCache, *, padding_slots: int = 0, poison: bool = False) -> None:
        """`padding_slots`: slots at the end that are never leased; the padding rows of a batch use the last one."""
        self.cache = cache
        self._allocator = SlotAllocator(cache.slots, padding_slots=padding_slots)
        self._poison = poison
        if poison:
            self._poison_slots(range(cache.slots))

    @property
    def free(self) -> int:
        """Number of free slots."""
        return self._allocator.free

    @property
    def used(self) -> int:
        """Number of leased slots."""
        return self._allocator.used

    @property
    def all_free(self) -> bool:
        """True if every slot is free."""
        return self.used == 0

    @property
    def padding_slot(self) -> int:
        """The slot for padding rows; `StateError` if the pool has none."""
        return self._allocator.padding_slot

    def acquire(self, sequence: SequenceId) -> KVLease:
        """Lease a slot for `sequence`; `StateError` if none is free."""
        slot, epoch = self._allocator.acquire()
        return KVLease(slot=slot, epoch=epoch, sequence=sequence)

    def rows(self, leases: Sequence[KVLease]) -> KVRows:
        """The batch rows of `leases`, in their order; `StateError` for a stale lease."""
        for lease in leases:
            self._check(lease)
        return self._as_rows([lease.slot for lease in leases])

    def copy_out(self, lease: KVLease, positions: int) -> KVCopy:
        """Copy the first `positions` of a leased slot."""
        self._check(lease)
        cache, slot = self.cache, lease.slot
        return KVCopy(cache.keys[:, slot, :, :positions].clone(), cache.values[:, slot, :, :positions].clone())

    def copy_in(self, lease: KVLease, copy: KVCopy) -> int:
        """Copy `copy` into the first positions of a leased slot. Returns the number of positions."""
        self._check(lease)
        positions = copy.keys.shape[2]
        self.cache.keys[:, lease.slot, :, :positions] = copy.keys
        self.cache.values[:, lease.slot, :, :positions] = copy.values
        return positions

    def release(self, lease: KVLease) -> None:
        """End a lease."""
        self._check(lease)
        self._allocator.release(lease.slot, lease.epoch)
        if self._poison:
            self._poison_slots([lease.slot])

    def _check(self, lease: KVLease) -> None:
        if not isinstance(lease, KVLease):
            raise StateError(f"expected a KVLease, not {type(lease).__name__}")
        self._allocator.check(lease.slot, lease.epoch)

    def _as_rows(self, slots: Sequence[int]) -> KVRows:
        return KVRows.of(slots, self.cache.keys.device)

    def _poison_slots(self, slots: Sequence[int]) -> None:
        poison(self.cache, self._as_rows(slots))


# --- prefix cache ----------------------------------------------------------------------------------------------------

PrefixKey = tuple[str, tuple[PromptRow, ...]]
"""Digest of the voice ("" without one), and the prompt rows of the prefix."""

MIN_PREFIX_POSITIONS = 16
"""Shorter prefixes are not cached: a prefix needs a separate prefill call, and a short one saves almost nothing."""


def cacheable_prefix_len(plan: PromptPlan) -> int:
    """Length of the prefix of a prompt that is prefilled separately and cached; 0 if it is too short.

    It depends only on the prompt, not on whether the prefix is in the cache. A prompt is therefore always sliced at
    the same positions, and deterministic output is bit-identical with a cold and a warm cache. The prefix never covers
    the whole prompt, because the hidden state of the last position is needed to sample the first frame.
    """
    fixed_prefix_len = min(plan.fixed_prefix_len, len(plan.rows) - 1)
    return fixed_prefix_len if fixed_prefix_len >= MIN_PREFIX_POSITIONS else 0


class PrefixCache:
    """LRU cache of prompt prefixes, with a size limit in bytes."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._entries: OrderedDict[PrefixKey, KVCopy] = OrderedDict()

    @property
    def cached_bytes(self) -> int:
        """Size of all cached prefixes."""
        return sum(copy.bytes for copy in self._entries.values())

    def get(self, key: PrefixKey) -> KVCopy | None:
        """The cached prefix, None if it is not in the cache."""
        if key not in self._entries:
            return None
        self._entries.move_to_end(key)
        return self._entries[key]

    def put(self, key: PrefixKey, copy: KVCopy) -> None:
        """Cache a prefix and evict the least recently used ones. A prefix larger than the limit is not cached."""
        self._entries[key] = copy
        self._entries.move_to_end(key)
        while self._entries and self.cached_bytes > self._limit_bytes:
            self._entries.popitem(last=False)
