"""The talker's KV cache: one place for each sequence, allocated once. KIND 1 of the four states.

Lives as long as the engine. Knows no lengths and no sequences: leases know them, and `Talker` is told where each row
starts. `KVRows` names the cache slots of a batch and nothing else's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from legato.config.model import TransformerConfig
from legato.errors import StateError
from legato.models.layers.decoder_layer import Cells, attend


@dataclass(frozen=True, slots=True)
class KVRows:
    """The slots of the talker cache that the rows of a batch stand for: `index` int64 [B].

    `run` is the same slots as a slice where they are consecutive and the host knows it, else None: reading a slice of
    the cache saves the copy of a gather. A slot stands in a batch at most once, but a spare one may fill all idle rows.
    """

    index: Tensor
    run: slice | None = None

    def __post_init__(self) -> None:
        if self.index.dtype != torch.int64 or self.index.dim() != 1:
            raise StateError(f"KVRows needs an int64 tensor [B], not {self.index.dtype} {tuple(self.index.shape)}")

    @staticmethod
    def of(slots: Sequence[int], device: torch.device | str = "cpu") -> KVRows:
        """Rows for slots that the host knows; a negative slot is a `StateError`, not the last one."""
        if any(slot < 0 for slot in slots):
            raise StateError(f"slots are counted from 0, and {list(slots)} has a negative one")
        first = slots[0] if slots else 0
        consecutive = len(slots) > 0 and list(slots) == list(range(first, first + len(slots)))
        index = torch.tensor(list(slots), dtype=torch.int64, device=device)
        return KVRows(index, slice(first, first + len(slots)) if consecutive else None)


def require_kv_rows(rows: KVRows) -> None:
    """Refuses a bare index and rows of any other pool (`StateError`): an index alone forgets what it counts."""
    if not isinstance(rows, KVRows):
        raise StateError(f"the talker cache is addressed by KVRows, not by {type(rows).__name__}")


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
        """Bytes that one position of one sequence takes, keys and values of all layers."""
        L, _, H_kv, _, d = self.keys.shape
        return 2 * L * H_kv * d * self.keys.element_size()


def poison(cache: TalkerCache, rows: KVRows) -> None:
    """Fill the slots of `rows` with NaN: whoever reads them afterwards is found out."""
    require_kv_rows(rows)
    cache.keys.index_fill_(1, rows.index, float("nan"))
    cache.values.index_fill_(1, rows.index, float("nan"))


def open_window(
    cache: TalkerCache, rows: KVRows, starts: Tensor, lengths: Tensor, *, steps: int, span: int
) -> RowWindow | MaskedWindow:
    """One call's access to the cache: `lengths` [B] of its `steps` positions go to `starts` [B] on.

    On the CPU, where the host can see the positions, each row reads just its own past, which is faster there and makes
    a row's result independent of its neighbours and of `span`. Elsewhere shapes are fixed and no position is looked at:
    the first `span` positions of all rows are read, and what is not the row's past is masked. Both give the same.
    """
    if reads_row_by_row(cache):
        return RowWindow.of(cache, rows, starts, lengths, steps=steps)
    return MaskedWindow.of(cache, rows, starts, lengths, steps=steps, span=span)


def reads_row_by_row(cache: TalkerCache) -> bool:
    """True where looking at a position costs the host no wait."""
    return cache.keys.device.type == "cpu"


@dataclass(frozen=True, slots=True)
class RowWindow:
    """Each row on its own: `places` has its slot, first new position and end.

    `visible` has its causal mask bool [1, T, end], or None where a single position sees all. `steps`: positions of the
    call, padding included.
    """

    cache: TalkerCache
    places: tuple[tuple[int, int, int], ...]
    visible: tuple[Tensor | None, ...]
    steps: int

    @staticmethod
    def of(cache: TalkerCache, rows: KVRows, starts: Tensor, lengths: Tensor, *, steps: int) -> RowWindow:
        """Refuses rows that do not fit their slots (`StateError`)."""
        slots, firsts, counts = rows.index.tolist(), starts.tolist(), lengths.tolist()
        places = tuple((slot, first, first + count) for slot, first, count in zip(slots, firsts, counts, strict=True))
        for slot, first, end in places:
            if first < 0 or end > cache.positions:
                raise StateError(f"positions {first} to {end} do not fit slot {slot} of {cache.positions} positions")
        masks = tuple(
            torch.ones(end - first, end, dtype=torch.bool).tril(diagonal=first)[None] if end - first > 1 else None
            for _, first, end in places
        )
        return RowWindow(cache, places, masks, steps)

    def attend(self, layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Write the new keys and values of each row, then attend to its past; padding positions give zeros."""
        mixed, dtype = torch.zeros_like(queries), self.cache.keys.dtype
        for at, (slot, first, end) in enumerate(self.places):
            fresh = end - first
            past_keys, past_values = self.cache.keys[layer, slot, :, :end], self.cache.values[layer, slot, :, :end]
            past_keys[:, first:] = keys[at, :, :fresh]
            past_values[:, first:] = values[at, :, :fresh]
            if fresh:
                mixed[at, :, :fresh] = attend(
                    queries[at : at + 1, :, :fresh].to(dtype), past_keys[None], past_values[None], self.visible[at]
                )[0]
        return mixed

    def cells(self) -> Cells | None:
        """The new positions of all rows, one after another; padding is left out."""
        counts = [end - first for _, first, end in self.places]
        slots = [slot for slot, first, end in self.places for _ in range(first, end)]
        positions = [position for _, first, end in self.places for position in range(first, end)]
        used = None
        if min(counts) < self.steps:
            used = torch.tensor([row * self.steps + at for row, count in enumerate(counts) for at in range(count)])
        span = max(end for _, _, end in self.places)
        cache = self.cache
        return Cells(cache.keys, cache.values, torch.tensor(slots), torch.tensor(positions), used, span)


@dataclass(frozen=True, slots=True)
class MaskedWindow:
    """All rows in one product over the first `span` positions, with shapes that depend on no position.

    `at` int64 [B, T] positions to write, unique in each row; `fresh` bool [B, T], False where nothing is to be written;
    `known` bool [B, span], positions that the row has written, this call included; `visible` bool [B, T, span].
    """

    cache: TalkerCache
    rows: KVRows
    at: Tensor
    fresh: Tensor
    known: Tensor
    visible: Tensor

    @staticmethod
    def of(cache: TalkerCache, rows: KVRows, starts: Tensor, lengths: Tensor, *, steps: int, span: int) -> MaskedWindow:
        """That rows fit their slots is not checked: it would make the host wait."""
        new = torch.arange(steps, device=starts.device)
        reach = torch.arange(span, device=starts.device)
        positions = starts[:, None] + new
        fresh = new < lengths[:, None]
        known = reach < (starts + lengths)[:, None]
        # Padding may stand beyond the slot: taken modulo its size, positions stay inside and unique within the row.
        at = torch.where(fresh, positions, positions % cache.positions)
        return MaskedWindow(cache, rows, at, fresh, known, known[:, None] & (reach <= positions[:, :, None]))

    def attend(self, layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Write the new keys and values, then attend to the span; unknown values are read as zeros."""
        self._write(self.cache.keys[layer], keys)
        self._write(self.cache.values[layer], values)
        clean = self._read(self.cache.values[layer]).masked_fill(~self.known[:, None, :, None], 0.0)
        mixed = attend(queries.to(clean.dtype), self._read(self.cache.keys[layer]), clean, self.visible)
        return mixed.to(queries.dtype)

    def cells(self) -> Cells | None:
        """The host looks at no position here."""
        return None

    def _write(self, pool: Tensor, new: Tensor) -> None:
        slots = self.rows.index[:, None]
        # A padding position writes back what was there: shapes stay fixed, and nothing changes.
        pool[slots, :, self.at] = torch.where(
            self.fresh[:, :, None, None], new.transpose(1, 2).to(pool.dtype), pool[slots, :, self.at]
        )

    def _read(self, pool: Tensor) -> Tensor:
        within = pool[:, :, : self.known.shape[1]]
        return within[self.rows.run] if self.rows.run is not None else within.index_select(0, self.rows.index)
