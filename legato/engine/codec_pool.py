"""KIND 3 state: the codec histories of streams, leased by the slot.

Owns the storage for the life of the engine and is the only maker of `CodecLease`. A stream keeps its slot longer than
any of its sequences keeps a talker slot. Knows no code and no sample. A slot that nobody owns holds NaN.
"""

from __future__ import annotations

from collections.abc import Sequence

from legato.engine.leases import CodecLease, SlotBook, last_of
from legato.errors import StateError
from legato.flow import StreamId
from legato.models.codec.state import CodecHistory, CodecRows, CodecStatePool


class CodecPool:
    """Leases of codec slots, and the histories behind them."""

    def __init__(self, storage: CodecStatePool, *, spare: int = 0) -> None:
        """`spare`: slots at the end that nobody is ever given; idle rows of a batch use the last one."""
        self.storage = storage
        self._spare = range(storage.slots - spare, storage.slots)
        self._book = SlotBook(storage.slots - spare)

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

    @property
    def slot_bytes(self) -> int:
        """Bytes of one stream's history."""
        return self.storage.slot_bytes

    def acquire(self, stream: StreamId, start: Sequence[CodecHistory]) -> CodecLease:
        """A lease for `stream`, fresh, or continued from the one history in `start` (a cloned voice's)."""
        slot, epoch = self._book.acquire()
        lease = CodecLease(slot=slot, epoch=epoch, stream=stream)
        row = self.rows([lease])
        if start:
            self.storage.restore(row, start[0])
        else:
            self.storage.reset(row)
        return lease

    def gather(self, leases: Sequence[CodecLease]) -> CodecHistory:
        """The histories of `leases`, one row each, in their order."""
        return self.storage.gather(self.rows(leases))

    def scatter(self, leases: Sequence[CodecLease], history: CodecHistory) -> None:
        """Store the histories after a window."""
        self.storage.scatter(self.rows(leases), history)

    def release(self, lease: CodecLease) -> None:
        """End a lease; the slot is filled with NaN."""
        row = self.rows([lease])
        self._book.release(lease.slot, lease.epoch)
        self.storage.poison(row)

    def rows(self, leases: Sequence[CodecLease]) -> CodecRows:
        """The slots of `leases`, in their order; a stale lease is refused."""
        for lease in leases:
            if not isinstance(lease, CodecLease):
                raise StateError(f"the codec pool was shown a {type(lease).__name__}, not a CodecLease")
            self._book.check(lease.slot, lease.epoch)
        return CodecRows.of([lease.slot for lease in leases], self.storage.device)
