"""Codec state: the decoder histories of streams, one slot for each stream.

The pool lives as long as the engine and is the only creator of `CodecLease`. A stream keeps its slot longer than any of
its sequences keeps a KV slot. Free slots are filled with NaN, so that a read outside a lease is noticed.
"""

from __future__ import annotations

from collections.abc import Sequence

from legato.engine.leases import CodecLease, SlotAllocator, last_of
from legato.errors import StateError
from legato.models.codec.state import CodecHistory, CodecRows, CodecStatePool
from legato.types import StreamId


class CodecPool:
    """Leases of codec slots, and their histories."""

    def __init__(self, storage: CodecStatePool, *, spare: int = 0) -> None:
        """`spare`: slots at the end that are never leased; padding rows of a batch use the last one."""
        self.storage = storage
        self._spare = range(storage.slots - spare, storage.slots)
        self._allocator = SlotAllocator(storage.slots - spare)

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

    @property
    def slot_bytes(self) -> int:
        """Bytes of one stream's history."""
        return self.storage.slot_bytes

    def acquire(self, stream: StreamId, start: CodecHistory | None = None) -> CodecLease:
        """Lease a slot. It starts empty, or from the history `start` (after the reference of a cloned voice)."""
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
                raise StateError(f"the codec pool was given a {type(lease).__name__}, not a CodecLease")
            self._allocator.check(lease.slot, lease.epoch)
        return CodecRows.of([lease.slot for lease in leases], self.storage.device)
