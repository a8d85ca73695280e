"""Leases: the right to one slot of one pool, for one owner. Plain host values; only a pool makes them.

A lease carries the epoch of its slot. When the slot is released the epoch moves on, and a stale lease is refused. The
two kinds share no base class: a talker lease can never stand in for a codec lease, in mypy or at run time.
"""

from __future__ import annotations

from dataclasses import dataclass

from legato.errors import StateError
from legato.flow import SequenceId, StreamId


@dataclass(frozen=True, slots=True)
class KVLease:
    """The right of one sequence to one slot of talker positions."""

    slot: int
    epoch: int
    sequence: SequenceId


@dataclass(frozen=True, slots=True)
class CodecLease:
    """The right of one stream to one slot of codec history."""

    slot: int
    epoch: int
    stream: StreamId


class SlotBook:
    """Which slots of a pool are free, and the epoch of each. Counts only; the tensors are the pool's."""

    def __init__(self, slots: int) -> None:
        self._epochs = [0] * slots
        self._free = list(range(slots - 1, -1, -1))

    @property
    def free(self) -> int:
        """Slots that nobody holds."""
        return len(self._free)

    @property
    def balanced(self) -> bool:
        """True when every slot is free: nothing was lost."""
        return len(self._free) == len(self._epochs)

    def acquire(self) -> tuple[int, int]:
        """A free slot and its epoch; `StateError` when there is none."""
        if not self._free:
            raise StateError(f"all {len(self._epochs)} slots are taken")
        slot = self._free.pop()
        return slot, self._epochs[slot]

    def check(self, slot: int, epoch: int) -> None:
        """Refuse a stale lease."""
        if self._epochs[slot] != epoch or slot in self._free:
            raise StateError(f"stale lease of slot {slot}: its epoch is {epoch}, the slot's is {self._epochs[slot]}")

    def release(self, slot: int, epoch: int) -> None:
        """Give the slot back; its epoch moves on."""
        self.check(slot, epoch)
        self._epochs[slot] += 1
        self._free.append(slot)


def last_of(spare: range) -> int:
    """The last of a pool's spare slots; `StateError` where it has none."""
    if not spare:
        raise StateError("this pool was made without a spare slot")
    return spare[-1]
