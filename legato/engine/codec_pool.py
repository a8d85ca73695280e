"""KIND 3 state: the codec histories of streams, leased by the slot.

Owns the storage for the life of the engine and is the only maker of `CodecLease`. A stream keeps its slot longer than
any of its sequences keeps a talker slot. Knows no code and no sample. A slot that nobody owns holds NaN.
"""

from __future__ import annotations

from collections.abc import Sequence

from legato.engine.leases import CodecLease, SlotBook
from legato.errors import StateError
from legato.flow import StreamId
from legato.models.codec.state import CodecHistory, CodecRows, CodecStatePool


class CodecPool:
    """Leases of codec slots, and the histories behind them."""

    def __init__(self, storage: CodecStatePool) -> None:
        self._storage = storage
        self._book = SlotBook(storage.slots)

    @property
    def free(self) -> int:
        """Slots that nobody holds."""
        return self._book.free

    @property
    def balanced(self) -> bool:
        """True when every slot is free."""
        return self._book.balanced

    @property
    def slot_bytes(self) -> int:
        """Bytes of one stream's history."""
        return self._storage.slot_bytes

    def acquire(self, stream: StreamId, start: Sequence[CodecHistory]) -> CodecLease:
        """A lease for `stream`, fresh, or continued from the one history in `start` (a cloned voice's)."""
        slot, epoch = self._book.acquire()
        lease = CodecLease(slot=slot, epoch=epoch, stream=stream)
        row = self._rows([lease])
        if start:
            self._storage.restore(row, start[0])
        else:
            self._storage.reset(row)
        return lease

    def gather(self, leases: Sequence[CodecLease]) -> CodecHistory:
        """The histories of `leases`, one row each, in their order."""
        return self._storage.gather(self._rows(leases))

    def scatter(self, leases: Sequence[CodecLease], history: CodecHistory) -> None:
        """Store the histories after a window."""
        self._storage.scatter(self._rows(leases), history)

    def release(self, lease: CodecLease) -> None:
        """End a lease; the slot is filled with NaN."""
        row = self._rows([lease])
        self._book.release(lease.slot, lease.epoch)
        self._storage.poison(row)

    def _rows(self, leases: Sequence[CodecLease]) -> CodecRows:
        for lease in leases:
            if not isinstance(lease, CodecLease):
                raise StateError(f"the codec pool was shown a {type(lease).__name__}, not a CodecLease")
            self._book.check(lease.slot, lease.epoch)
        return CodecRows.of([lease.slot for lease in leases], self._storage.device)
