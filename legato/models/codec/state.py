"""KIND 3 state: the codec history of streams, and the storage of many of them.

A history belongs to one stream, from its first frame to the flush of its last window. It is what the past left behind:
zeros for convolutions and nothing at all for attention at the start. Leases are the engine's matter; this file knows
slots and rows, and no stream.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from legato.errors import StateError


@dataclass(frozen=True, slots=True)
class CodecRows:
    """Slots of the codec pool, int64 [B], one for each row of a batch. Cannot stand in for rows of another pool."""

    slots: Tensor

    def __post_init__(self) -> None:
        if self.slots.dtype != torch.int64 or self.slots.dim() != 1:
            raise StateError(f"codec rows are int64 [B], not {self.slots.dtype} {tuple(self.slots.shape)}")

    @staticmethod
    def of(slots: Sequence[int], device: torch.device | str = "cpu") -> CodecRows:
        """Rows of these slots. Refused: a slot that occurs twice (one stream has one history), or below 0."""
        if any(slot < 0 for slot in slots):
            raise StateError(f"slots are counted from 0, and {list(slots)} has a negative one")
        if len(set(slots)) != len(slots):
            raise StateError(f"a codec slot occurs twice in {list(slots)}")
        return CodecRows(torch.tensor(list(slots), dtype=torch.int64, device=device))


@dataclass(frozen=True, slots=True)
class CodecHistory:
    """The histories of B streams; every tensor has the rows as its first axis. Rows may be at different positions.

    `positions` [B] int64: frames decoded so far; also tells how much of the attention history is filled.
    `keys`, `values`: one [B, kv_heads, window-1, head_dim] for each attention layer, keys after RoPE, newest last.
    `convs`: one [B, positions, channels] for each convolution, in the order of the decoder's layers.
    """

    positions: Tensor
    keys: tuple[Tensor, ...]
    values: tuple[Tensor, ...]
    convs: tuple[Tensor, ...]

    @property
    def rows(self) -> int:
        """Streams in this value."""
        return self.positions.shape[0]

    @property
    def row_bytes(self) -> int:
        """Bytes of one stream's history."""
        return sum(tensor[0].numel() * tensor.element_size() for tensor in self.tensors())

    def tensors(self) -> tuple[Tensor, ...]:
        """All tensors in a fixed order, positions first."""
        return (self.positions, *self.keys, *self.values, *self.convs)

    def map(self, change: Callable[[Tensor], Tensor]) -> CodecHistory:
        """A history with `change` applied to every tensor."""
        return CodecHistory(
            change(self.positions),
            tuple(change(each) for each in self.keys),
            tuple(change(each) for each in self.values),
            tuple(change(each) for each in self.convs),
        )

    def clone(self) -> CodecHistory:
        """A copy that shares no memory (what the decoder returns may be views of larger buffers)."""
        return self.map(lambda tensor: tensor.detach().clone(memory_format=torch.contiguous_format))

    def select(self, rows: Sequence[int]) -> CodecHistory:
        """A copy of these rows, in this order."""
        index = torch.tensor(list(rows), dtype=torch.int64, device=self.positions.device)
        return self.map(lambda tensor: tensor.index_select(0, index))


def join_rows(histories: Sequence[CodecHistory]) -> CodecHistory:
    """One history with the rows of all, in order."""
    parts = [history.tensors() for history in histories]
    joined = iter([torch.cat(each, dim=0) for each in zip(*parts, strict=True)])
    return histories[0].map(lambda _: next(joined))


class CodecStatePool:
    """Storage of S slots on one device. Inference only: nothing here keeps gradients.

    Contents of a slot that was never reset are poison (NaN). Who may use which slot is for the engine's leases.
    """

    def __init__(self, storage: CodecHistory) -> None:
        """Takes over `storage`, whose rows become the slots (`CodecDecoder.fresh(slots)` makes one)."""
        self._storage = storage.clone()
        self.poison(CodecRows(torch.arange(self.slots, device=self.device)))

    @property
    def slots(self) -> int:
        """Streams that fit."""
        return self._storage.rows

    @property
    def device(self) -> torch.device:
        """Where the storage lives."""
        return self._storage.positions.device

    @property
    def slot_bytes(self) -> int:
        """Bytes of one slot."""
        return self._storage.row_bytes

    def gather(self, rows: CodecRows) -> CodecHistory:
        """A copy of the rows' histories, in the order of `rows`."""
        index = _index(rows)
        return self._storage.map(lambda tensor: tensor.index_select(0, index))

    def scatter(self, rows: CodecRows, history: CodecHistory) -> None:
        """Store row b of `history` in slot `rows[b]`. Nothing else changes."""
        index = _index(rows)
        if history.rows != index.shape[0]:
            raise StateError(f"{history.rows} histories cannot go to {index.shape[0]} slots")
        for stored, new in zip(self._storage.tensors(), history.tensors(), strict=True):
            if stored.dtype != new.dtype or stored.shape[1:] != new.shape[1:]:
                raise StateError(f"history {new.dtype} {tuple(new.shape)} does not fit {stored.dtype} {stored.shape}")
            stored.index_copy_(0, index, new.detach())

    def reset(self, rows: CodecRows) -> None:
        """Make the slots fresh: position 0, convolutions zero, attention empty."""
        index = _index(rows)
        for stored in self._storage.tensors():
            stored.index_fill_(0, index, 0)

    def poison(self, rows: CodecRows) -> None:
        """Fill the slots with NaN (position -1), so that any use before `reset` shows in the samples."""
        index = _index(rows)
        for stored in self._storage.tensors():
            stored.index_fill_(0, index, float("nan") if stored.is_floating_point() else -1)

    def snapshot(self, row: CodecRows) -> CodecHistory:
        """A copy of one slot, to keep (the state after a cloned voice's reference)."""
        _single(row)
        return self.gather(row)

    def restore(self, row: CodecRows, snapshot: CodecHistory) -> None:
        """Start a slot from a snapshot, which stays usable."""
        _single(row)
        self.scatter(row, snapshot)


def _index(rows: CodecRows) -> Tensor:
    if not isinstance(rows, CodecRows):
        raise StateError(f"the codec pool takes CodecRows, not {type(rows).__name__}")
    return rows.slots


def _single(row: CodecRows) -> None:
    if _index(row).shape[0] != 1:
        raise StateError(f"a snapshot is of one slot, not of {_index(row).shape[0]}")
