"""Codec history of streams (state kind 3 of docs/states.md), and a pool that stores one for each slot.

A history belongs to one stream, from its first frame to its last. It is the left context of the decoder: zeros for
convolutions and no positions for attention at the start. The engine's leases decide which stream uses which slot.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from legato.errors import StateError


@dataclass(frozen=True, slots=True)
class CodecRows:
    """Slots of the codec pool for the rows of a batch, int64 [B]. A separate type, so that pools are not mixed up."""

    slots: Tensor

    def __post_init__(self) -> None:
        if self.slots.dtype != torch.int64 or self.slots.dim() != 1:
            raise StateError(f"codec rows are int64 [B], not {self.slots.dtype} {tuple(self.slots.shape)}")

    @staticmethod
    def of(slots: Sequence[int], device: torch.device | str = "cpu") -> CodecRows:
        """Rows for these slots. Raises `StateError` for a negative slot, or one that occurs twice."""
        if any(slot < 0 for slot in slots):
            raise StateError(f"slots must not be negative: {list(slots)}")
        if len(set(slots)) != len(slots):
            raise StateError(f"a codec slot occurs twice in {list(slots)}")
        return CodecRows(torch.tensor(list(slots), dtype=torch.int64, device=device))


@dataclass(frozen=True, slots=True)
class CodecHistory:
    """Histories of B streams, which may be at different positions. Axis 0 of every tensor is the stream.

    `positions` int64 [B]: frames decoded so far, which also says how much of the attention history is filled.
    `keys`, `values`: [B, kv_heads, window - 1, head_dim] for each attention layer; keys after RoPE, newest last.
    `convs`: [B, positions, channels] for each convolution, in the order of the decoder's layers.
    """

    positions: Tensor
    keys: tuple[Tensor, ...]
    values: tuple[Tensor, ...]
    convs: tuple[Tensor, ...]

    @property
    def rows(self) -> int:
        """Number of streams."""
        return self.positions.shape[0]

    @property
    def row_bytes(self) -> int:
        """Size of one stream's history in bytes."""
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
        """A copy that shares no memory. The decoder may return views of larger buffers."""
        return self.map(lambda tensor: tensor.detach().clone(memory_format=torch.contiguous_format))

    def select(self, rows: Sequence[int]) -> CodecHistory:
        """A copy of the given rows, in this order."""
        index = torch.tensor(list(rows), dtype=torch.int64, device=self.positions.device)
        return self.map(lambda tensor: tensor.index_select(0, index))


def join_rows(histories: Sequence[CodecHistory]) -> CodecHistory:
    """Concatenate histories along the batch axis."""
    parts = [history.tensors() for history in histories]
    joined = iter([torch.cat(each, dim=0) for each in zip(*parts, strict=True)])
    return histories[0].map(lambda _: next(joined))


class CodecStatePool:
    """Storage for the histories of S slots on one device, without gradients.

    A slot that was never reset holds NaN, so that use of stale data shows in the output.
    """

    def __init__(self, storage: CodecHistory) -> None:
        """`storage`: a history with one row per slot, such as `CodecDecoder.initial_history(slots)`. It is copied."""
        self._storage = storage.clone()
        self.poison(CodecRows(torch.arange(self.slots, device=self.device)))

    @property
    def slots(self) -> int:
        """Number of slots."""
        return self._storage.rows

    @property
    def device(self) -> torch.device:
        """Device of the storage."""
        return self._storage.positions.device

    @property
    def slot_bytes(self) -> int:
        """Size of one slot in bytes."""
        return self._storage.row_bytes

    def gather(self, rows: CodecRows) -> CodecHistory:
        """A copy of the histories in the given slots."""
        index = _index(rows)
        return self._storage.map(lambda tensor: tensor.index_select(0, index))

    def scatter(self, rows: CodecRows, history: CodecHistory) -> None:
        """Store row b of `history` in slot `rows[b]`; other slots do not change."""
        index = _index(rows)
        if history.rows != index.shape[0]:
            raise StateError(f"{history.rows} histories were given for {index.shape[0]} slots")
        for stored, new in zip(self._storage.tensors(), history.tensors(), strict=True):
            if stored.dtype != new.dtype or stored.shape[1:] != new.shape[1:]:
                raise StateError(
                    f"history {new.dtype} {tuple(new.shape)} does not fit slots {stored.dtype} {tuple(stored.shape)}"
                )
            stored.index_copy_(0, index, new.detach())

    def reset(self, rows: CodecRows) -> None:
        """Set the slots to the initial history: position 0, zeros, no attention positions."""
        index = _index(rows)
        for stored in self._storage.tensors():
            stored.index_fill_(0, index, 0)

    def poison(self, rows: CodecRows) -> None:
        """Fill the slots with NaN and position -1, so that use before `reset` shows in the samples."""
        index = _index(rows)
        for stored in self._storage.tensors():
            stored.index_fill_(0, index, float("nan") if stored.is_floating_point() else -1)

    def snapshot(self, row: CodecRows) -> CodecHistory:
        """A copy of one slot, such as the history after the reference of a cloned voice."""
        _single(row)
        return self.gather(row)

    def restore(self, row: CodecRows, snapshot: CodecHistory) -> None:
        """Copy a snapshot into a slot. The snapshot can be used again."""
        _single(row)
        self.scatter(row, snapshot)


def _index(rows: CodecRows) -> Tensor:
    if not isinstance(rows, CodecRows):
        raise StateError(f"the codec pool needs CodecRows, not {type(rows).__name__}")
    return rows.slots


def _single(row: CodecRows) -> None:
    if _index(row).shape[0] != 1:
        raise StateError(f"a snapshot needs exactly one slot, not {_index(row).shape[0]}")
