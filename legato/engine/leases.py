"""Leases: each allows one owner to use one slot of a pool. Plain host values; only a pool creates them.

A lease stores the epoch of its slot. Releasing a slot increments its epoch, so that a stale lease is rejected. The two
lease types have no common base class, so that mypy and the pools reject a KV lease where a codec lease is expected.
"""

from __future__ import annotations

from dataclasses import dataclass

from legato.errors import StateError
from legato.types import SequenceId, StreamId


@dataclass(frozen=True, slots=True)
class KVLease:
    """Lease of one KV slot by one sequence."""

    slot: int
    epoch: int
    sequence: SequenceId


@dataclass(frozen=True, slots=True)
class CodecLease:
    """Lease of one codec slot by one stream."""

    slot: int
    epoch: int
    stream: StreamId


class SlotAllocator:
    """Free list, epochs and padding slots of a pool. The pool holds the tensors."""

    def __init__(self, slots: int, *, padding_slots: int = 0) -> None:
        """`padding_slots`: slots at the end that are never leased; the padding rows of a batch use the last one."""
        leasable = slots - padding_slots
        self._epochs = [0] * leasable
        self._free = list(range(leasable - 1, -1, -1))
        self._padding_slots = range(leasable, slots)

    @property
    def free(self) -> int:
        """Number of free slots."""
        return len(self._free)

    @property
    def used(self) -> int:
        """Number of leased slots."""
        return len(self._epochs) - len(self._free)

    @property
    def padding_slot(self) -> int:
        """The last padding slot; `StateError` if there is none."""
        if not self._padding_slots:
            raise StateError("this pool was created without padding slots")
        return self._padding_slots[-1]

    def acquire(self) -> tuple[int, int]:
        """Allocate a slot. Returns the slot and its epoch; `StateError` if no slot is free."""
        if not self._free:
            raise StateError(f"no free slot: all {len(self._epochs)} are leased")
        slot = self._free.pop()
        return slot, self._epochs[slot]

    def check(self, slot: int, epoch: int) -> None:
        """`StateError` for a stale lease."""
        if self._epochs[slot] != epoch or slot in self._free:
            raise StateError(f"stale lease of slot {slot}: its epoch is {epoch}, the slot's is {self._epochs[slot]}")

    def release(self, slot: int, epoch: int) -> None:
        """Free the slot and increment its epoch."""
        self.check(slot, epoch)
        self._epochs[slot] += 1
        self._free.append(slot)
