"""The talker's KV cache: one slot per sequence, allocated once for the life of an engine.

It is state kind 1 of docs/states.md. The cache does not store lengths: the caller passes each row's start position.
`KVRows` lists the slots of a batch; rows of other pools are rejected.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from legato.config.model import TransformerConfig
from legato.errors import StateError
from legato.models.layers.attention import attention
from legato.models.layers.decoder_layer import KVLocations


@dataclass(frozen=True, slots=True)
class KVRows:
    """The talker cache slots of the rows of a batch: `index` int64 [B].

    `contiguous`: the same slots as a slice if they are consecutive and known on the host, else None. Reading a slice
    needs no copy; a gather does. A slot occurs at most once in a batch, except the padding slot of idle rows.
    """

    index: Tensor
    contiguous: slice | None = None

    def __post_init__(self) -> None:
        if self.index.dtype != torch.int64 or self.index.dim() != 1:
            raise StateError(f"KVRows needs an int64 tensor [B], not {self.index.dtype} {tuple(self.index.shape)}")

    @staticmethod
    def of(slots: Sequence[int], device: torch.device | str = "cpu") -> KVRows:
        """Rows for slots known on the host. A negative slot is a `StateError`; it does not mean "from the end"."""
        if any(slot < 0 for slot in slots):
            raise StateError(f"slots must not be negative: {list(slots)}")
        first = slots[0] if slots else 0
        consecutive = len(slots) > 0 and list(slots) == list(range(first, first + len(slots)))
        index = torch.tensor(list(slots), dtype=torch.int64, device=device)
        return KVRows(index, slice(first, first + len(slots)) if consecutive else None)


def require_kv_rows(rows: KVRows) -> None:
    """Raise `StateError` for a bare index or for the rows of another pool."""
    if not isinstance(rows, KVRows):
        raise StateError(f"the talker cache takes KVRows, not {type(rows).__name__}")


@dataclass(frozen=True, slots=True)
class TalkerCache:
    """Keys (after rotation) and values of all slots: each [L, S, H_kv, P, head_dim]."""

    keys: Tensor
    values: Tensor

    @staticmethod
    def allocate(
        stack: TransformerConfig, slots: int, positions: int, dtype: torch.dtype, device: torch.device | str = "cpu"
    ) -> TalkerCache:
        """A cache of zeros for `slots` sequences of at most `positions` positions each."""
        shape = (stack.num_hidden_layers, slots, stack.num_key_value_heads, positions, stack.head_dim)
        return TalkerCache(
            torch.zeros(shape, dtype=dtype, device=device), torch.zeros(shape, dtype=dtype, device=device)
        )

    @property
    def slots(self) -> int:
        return self.keys.shape[1]

    @property
    def positions(self) -> int:
        return self.keys.shape[3]

    @property
    def bytes_per_position(self) -> int:
        """Size of one position of one sequence in bytes: keys and values of all layers."""
        L, _, H_kv, _, d = self.keys.shape
        return 2 * L * H_kv * d * self.keys.element_size()


def poison(cache: TalkerCache, rows: KVRows) -> None:
    """Fill the slots of `rows` with NaN, so that a read of stale data shows in the output. For tests and debugging."""
    require_kv_rows(rows)
    cache.keys.index_fill_(1, rows.index, float("nan"))
    cache.values.index_fill_(1, rows.index, float("nan"))


def open_kv_view(
    cache: TalkerCache, rows: KVRows, starts: Tensor, lengths: Tensor, *, steps: int, span: int
) -> RowKVView | MaskedKVView:
    """One call's access to the cache: `lengths` [B] of its `steps` positions are written from `starts` [B] on.

    On the CPU the host can read the positions, so each row attends only to its own past. This is faster there and makes
    a row's result independent of the other rows and of `span`. On other devices shapes are fixed and no position is
    read on the host: the first `span` positions of all rows are read, and what is not in a row's past is masked. Both
    give the same result.
    """
    if reads_row_by_row(cache):
        return RowKVView.of(cache, rows, starts, lengths, steps=steps)
    return MaskedKVView.of(cache, rows, starts, lengths, steps=steps, span=span)


def reads_row_by_row(cache: TalkerCache) -> bool:
    """True if the host can read positions without synchronizing with a device."""
    return cache.keys.device.type == "cpu"


@dataclass(frozen=True, slots=True)
class RowKVView:
    """A view that handles each row separately: `ranges` holds its slot, first new position and end.

    `masks`: its causal mask bool [1, T, end], or None where a single position sees all. `steps`: positions of the call,
    padding included.
    """

    cache: TalkerCache
    ranges: tuple[tuple[int, int, int], ...]
    masks: tuple[Tensor | None, ...]
    steps: int

    @staticmethod
    def of(cache: TalkerCache, rows: KVRows, starts: Tensor, lengths: Tensor, *, steps: int) -> RowKVView:
        """A row that does not fit its slot is a `StateError`."""
        slots, firsts, counts = rows.index.tolist(), starts.tolist(), lengths.tolist()
        ranges = tuple((slot, first, first + count) for slot, first, count in zip(slots, firsts, counts, strict=True))
        for slot, first, end in ranges:
            if first < 0 or end > cache.positions:
                raise StateError(f"positions {first} to {end} do not fit slot {slot} of {cache.positions} positions")
        masks = tuple(
            torch.ones(end - first, end, dtype=torch.bool).tril(diagonal=first)[None] if end - first > 1 else None
            for _, first, end in ranges
        )
        return RowKVView(cache, ranges, masks, steps)

    def attend(self, layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Store the new keys and values of each row, then attend to its past. Padding positions give zeros."""
        attended, dtype = torch.zeros_like(queries), self.cache.keys.dtype
        for row, (slot, first, end) in enumerate(self.ranges):
            count = end - first
            past_keys, past_values = self.cache.keys[layer, slot, :, :end], self.cache.values[layer, slot, :, :end]
            past_keys[:, first:] = keys[row, :, :count]
            past_values[:, first:] = values[row, :, :count]
            if count:
                attended[row, :, :count] = attention(
                    queries[row : row + 1, :, :count].to(dtype), past_keys[None], past_values[None], self.masks[row]
                )[0]
        return attended

    def locations(self) -> KVLocations | None:
        """The new positions of all rows, one after another, without padding."""
        counts = [end - first for _, first, end in self.ranges]
        slots = [slot for slot, first, end in self.ranges for _ in range(first, end)]
        positions = [position for _, first, end in self.ranges for position in range(first, end)]
        used = None
        if min(counts) < self.steps:
            used = torch.tensor([row * self.steps + step for row, count in enumerate(counts) for step in range(count)])
        span = max(end for _, _, end in self.ranges)
        cache = self.cache
        return KVLocations(cache.keys, cache.values, torch.tensor(slots), torch.tensor(positions), used, span)


@dataclass(frozen=True, slots=True)
class MaskedKVView:
    """A view that handles all rows in one matmul over the first `span` positions; shapes depend on no position.

    `write_positions` int64 [B, T], unique in each row. `is_new` bool [B, T], False for padding, which writes nothing.
    `is_written` bool [B, span]: positions that the row has written, this call included. `mask` bool [B, T, span].
    """

    cache: TalkerCache
    rows: KVRows
    write_positions: Tensor
    is_new: Tensor
    is_written: Tensor
    mask: Tensor

    @staticmethod
    def of(cache: TalkerCache, rows: KVRows, starts: Tensor, lengths: Tensor, *, steps: int, span: int) -> MaskedKVView:
        """Does not check that rows fit their slots: that would synchronize with the device."""
        steps_of_call = torch.arange(steps, device=starts.device)
        span_positions = torch.arange(span, device=starts.device)
        positions = starts[:, None] + steps_of_call
        is_new = steps_of_call < lengths[:, None]
        is_written = span_positions < (starts + lengths)[:, None]
        # Padding may lie beyond the slot. Modulo the slot size, positions stay inside and unique within the row.
        write_positions = torch.where(is_new, positions, positions % cache.positions)
        mask = is_written[:, None] & (span_positions <= positions[:, :, None])
        return MaskedKVView(cache, rows, write_positions, is_new, is_written, mask)

    def attend(self, layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Store the new keys and values, then attend to the span. Values not yet written are read as zeros."""
        self._write(self.cache.keys[layer], keys)
        self._write(self.cache.values[layer], values)
        clean = self._read(self.cache.values[layer]).masked_fill(~self.is_written[:, None, :, None], 0.0)
        attended = attention(queries.to(clean.dtype), self._read(self.cache.keys[layer]), clean, self.mask)
        return attended.to(queries.dtype)

    def locations(self) -> KVLocations | None:
        """None: the host does not read positions."""
        return None

    def _write(self, pool: Tensor, new: Tensor) -> None:
        slots = self.rows.index[:, None]
        # A padding position writes back the old value: shapes stay fixed and the cache does not change.
        pool[slots, :, self.write_positions] = torch.where(
            self.is_new[:, :, None, None], new.transpose(1, 2).to(pool.dtype), pool[slots, :, self.write_positions]
        )

    def _read(self, pool: Tensor) -> Tensor:
        within = pool[:, :, : self.is_written.shape[1]]
        slots = self.rows.contiguous
        return within[slots] if slots is not None else within.index_select(0, self.rows.index)
