"""KIND 1 state: the talker's keys and values, leased by the slot to sequences.

Owns the cache for the life of the engine and is the only maker of `KVLease`. Knows no text, no frame and no stream.
With `poison` the positions of a slot are NaN whenever nobody owns them, so that a read outside a lease shows at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from legato.engine.leases import KVLease, SlotBook, last_of
from legato.errors import StateError
from legato.flow import SequenceId
from legato.models.talker.state import KVRows, TalkerCache, poison


@dataclass(frozen=True, slots=True)
class KVCopy:
    """Keys and values of the first positions of a sequence, each [L, H_kv, P, head_dim]; never changed."""

    keys: Tensor
    values: Tensor

    @property
    def bytes(self) -> int:
        """What it takes."""
        return sum(each.numel() * each.element_size() for each in (self.keys, self.values))


class KVPool:
    """Leases of talker slots."""

    def __init__(self, cache: TalkerCache, *, spare: int = 0, poison: bool = False) -> None:
        """`spare`: slots at the end that nobody is ever given; idle rows of a batch use the last one."""
        self.cache = cache
        self._spare = range(cache.slots - spare, cache.slots)
        self._book = SlotBook(cache.slots - spare)
        self._poison = poison
        if poison:
            self._poison_slots(range(cache.slots))

    @property
    def free(self) -> int:
        """Slots that nobody holds."""
        return self._book.free

    @property
    def balanced(self) -> bool:
        """True when every slot is free."""
        return self._book.balanced

    @property
    def spare(self) -> int:
        """The slot for idle rows; `StateError` where the pool has none."""
        return last_of(self._spare)

    def acquire(self, sequence: SequenceId) -> KVLease:
        """A lease for `sequence`; `StateError` when no slot is free."""
        slot, epoch = self._book.acquire()
        return KVLease(slot=slot, epoch=epoch, sequence=sequence)

    def rows(self, leases: Sequence[KVLease]) -> KVRows:
        """The batch rows of `leases`, in their order; a stale lease is refused."""
        for lease in leases:
            self._check(lease)
        return self._as_rows([lease.slot for lease in leases])

    def copy_out(self, lease: KVLease, positions: int) -> KVCopy:
        """A copy of the first `positions` of a leased slot."""
        self._check(lease)
        cache, slot = self.cache, lease.slot
        return KVCopy(cache.keys[:, slot, :, :positions].clone(), cache.values[:, slot, :, :positions].clone())

    def copy_in(self, lease: KVLease, copy: KVCopy) -> int:
        """Fill the first positions of a leased slot; returns how many."""
        self._check(lease)
        positions = copy.keys.shape[2]
        self.cache.keys[:, lease.slot, :, :positions] = copy.keys
        self.cache.values[:, lease.slot, :, :positions] = copy.values
        return positions

    def release(self, lease: KVLease) -> None:
        """End a lease."""
        self._check(lease)
        self._book.release(lease.slot, lease.epoch)
        if self._poison:
            self._poison_slots([lease.slot])

    def _check(self, lease: KVLease) -> None:
        if not isinstance(lease, KVLease):
            raise StateError(f"the talker pool was shown a {type(lease).__name__}, not a KVLease")
        self._book.check(lease.slot, lease.epoch)

    def _as_rows(self, slots: Sequence[int]) -> KVRows:
        return KVRows.of(slots, self.cache.keys.device)

    def _poison_slots(self, slots: Sequence[int]) -> None:
        poison(self.cache, self._as_rows(slots))
