"""KV cache of the talker: one slot for each sequence, and a cache of prompt prefixes.

Both live as long as the engine and are used by its thread only. `KVPool` is the only creator of `KVLease`. With
`poison` all positions of a free slot are NaN, so that a read outside a lease is noticed.

Prefixes: the prompt of a cloned voice starts with its header and its transcript, whatever text follows, and an
instruction precedes everything else. Keys and values of these positions do not depend on later ones. They are copied
from the slot when they are computed, and copied into the slot of the next sequence with the same prefix. The key is
the content (digest of the voice, and the prompt rows), never a name, so two voices with one name cannot be confused.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from legato.engine.leases import KVLease, SlotAllocator, last_of
from legato.errors import StateError
from legato.models.talker.state import KVRows, TalkerCache, poison
from legato.types import PromptPlan, PromptRow, SequenceId


@dataclass(frozen=True, slots=True)
class KVCopy:
    """Keys and values of the first positions of a sequence, each [L, H_kv, P, head_dim]. Never changed."""

    keys: Tensor
    values: Tensor

    @property
    def bytes(self) -> int:
        """Size of both tensors."""
        return sum(each.numel() * each.element_size() for each in (self.keys, self.values))


class KVPool:
    """Leases of KV slots."""

    def __init__(self, cache: TalkerCache, *, spare: int = 0, poison: bool = False) -> None:
        """`spare`: slots at the end that are never leased; padding rows of a batch use the last one."""
        self.cache = cache
        self._spare = range(cache.slots - spare, cache.slots)
        self._allocator = SlotAllocator(cache.slots - spare)
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
    def balanced(self) -> bool:
        """True if every slot is free."""
        return self.used == 0

    @property
    def spare(self) -> int:
        """The slot for padding rows; `StateError` if the pool has none."""
        return last_of(self._spare)

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
        """Fill the first positions of a leased slot from `copy`; returns their number."""
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
            raise StateError(f"the talker pool was given a {type(lease).__name__}, not a KVLease")
        self._allocator.check(lease.slot, lease.epoch)

    def _as_rows(self, slots: Sequence[int]) -> KVRows:
        return KVRows.of(slots, self.cache.keys.device)

    def _poison_slots(self, slots: Sequence[int]) -> None:
        poison(self.cache, self._as_rows(slots))


# --- prefix cache ----------------------------------------------------------------------------------------------------

PrefixKey = tuple[str, tuple[PromptRow, ...]]
"""Digest of the voice ("" without one), and the prompt rows of the prefix."""

MIN_PREFIX_POSITIONS = 16
"""Shorter prefixes are not cached: they need a prefill call of their own and save almost nothing."""


def shared_positions(plan: PromptPlan) -> int:
    """Length of the prefix of a prompt that is computed separately and cached; 0 if it is too short.

    It depends on the prompt only, not on whether the prefix is in the cache. A prompt is therefore always cut in the
    same places, and a deterministic engine gives the same bits with a cold and a warm cache. The prefix never covers
    the whole prompt, because the hidden state of the last position is needed to sample the first frame.
    """
    settled = min(plan.settled, len(plan.rows) - 1)
    return settled if settled >= MIN_PREFIX_POSITIONS else 0


class PrefixStore:
    """LRU cache of prompt prefixes, limited in bytes."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._kept: OrderedDict[PrefixKey, KVCopy] = OrderedDict()

    @property
    def kept_bytes(self) -> int:
        """Size of all cached prefixes."""
        return sum(copy.bytes for copy in self._kept.values())

    def find(self, key: PrefixKey) -> KVCopy | None:
        """The cached prefix, None if there is none."""
        if key not in self._kept:
            return None
        self._kept.move_to_end(key)
        return self._kept[key]

    def keep(self, key: PrefixKey, copy: KVCopy) -> None:
        """Cache a prefix and evict the least recently used ones. A prefix larger than the limit is not kept."""
        self._kept[key] = copy
        self._kept.move_to_end(key)
        while self._kept and self.kept_bytes > self._limit_bytes:
            self._kept.popitem(last=False)
