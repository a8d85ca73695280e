"""Codec state: the decoder histories of streams, one slot for each stream.

The pool lives as long as the engine, and only the pool creates `CodecLease` objects. A stream keeps its codec slot
longer than any of its sequences keeps a KV slot. Free slots are filled with NaN, which exposes reads without a lease.
"""

from __future__ import annotations

from collections.abc import Sequence

from legato.engine.leases import CodecLease, SlotAllocator
from legato.errors import StateError
from legato.models.codec.state import CodecHistory, CodecRows, CodecStatePool
from legato.types import StreamId


class CodecPool:
    """Leases of codec slots, and their histories."""

    def __init__(self, storage: CodecStatePool, *, padding_slots: int = 0) -> None:
        """`padding_slots`: slots at the end that are never leased; the padding rows of a batch use the last one."""
        self.storage = storage
        self._allocator = SlotAllocator(storage.slots, padding_slots=padding_slots)

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

    @property
    def slot_bytes(self) -> int:
        """Bytes of one stream's history."""
        return self.storage.slot_bytes

    def acquire(self, stream: StreamId, start: CodecHistory | None = None) -> CodecLease:
        """Lease a slot in the initial state, or in state `start` (after the reference of a cloned voice)."""
        slot, epoch = self._allocator.acquire()
        lease = CodecLease(slot=slot, epoch=epoch, stream=stream)
        row = self.rows([lease])
        if start is None:
            self.storage.reset(row)
        else:
            self.storage.restore(row, start)
        return lease

    def gather(self, leases: Sequence[CodecLease]) -> CodecHistory:
        """The histories of `leases`, one row each, in their order."""
        return self.storage.gather(self.rows(leases))

    def scatter(self, leases: Sequence[CodecLease], history: CodecHistory) -> None:
        """Store the histories after a window."""
        self.storage.scatter(self.rows(leases), history)

    def suspend(self, lease: CodecLease) -> CodecHistory:
        """End a lease and return a copy of its history, from which `acquire` can start another slot."""
        history = self.storage.snapshot(self.rows([lease]))
        self.release(lease)
        return history

    def release(self, lease: CodecLease) -> None:
        """End a lease and fill the slot with NaN."""
        row = self.rows([lease])
        self._allocator.release(lease.slot, lease.epoch)
        self.storage.poison(row)

    def rows(self, leases: Sequence[CodecLease]) -> CodecRows:
        """The slots of `leases`, in their order; `StateError` for a stale lease."""
        for lease in leases:
            if not isinstance(lease, CodecLease):
                raise StateError(f"expected a CodecLease, not {type(lease).__name__}")
            self._allocator.check(lease.slot, lease.epoch)
        return CodecRows.of([lease.slot for lease in leases], self.storage.device)
