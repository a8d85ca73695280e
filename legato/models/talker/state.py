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
        """Rows for slots that the host knows."""
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


@dataclass(frozen=True, slots=True)
class CacheWindow:
    """One call's view of the cache: where its T new positions of each row go, and the first `span` positions it reads.

    `at` int64 [B, T] positions to write, unique in each row; `fresh` bool [B, T], False where nothing is to be written
    (None: all are); `known` bool [B, span], positions that this sequence has written, this call included.
    """

    cache: TalkerCache
    rows: KVRows
    at: Tensor
    fresh: Tensor | None
    known: Tensor
    span: int

    def exchange(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Write this call's keys and values, read those of the span; unknown values are read as zeros."""
        self._write(self.cache.keys[layer], keys)
        self._write(self.cache.values[layer], values)
        read = self._read(self.cache.values[layer])
        clean = torch.where(self.known[:, None, :, None], read, torch.zeros((), dtype=read.dtype, device=read.device))
        return self._read(self.cache.keys[layer]), clean

    def _write(self, pool: Tensor, new: Tensor) -> None:
        slots = self.rows.index[:, None]
        new = new.transpose(1, 2)
        if self.fresh is not None:
            # A padding position writes back what was there: shapes stay fixed, and nothing changes.
            new = torch.where(self.fresh[:, :, None, None], new, pool[slots, :, self.at])
        pool[slots, :, self.at] = new

    def _read(self, pool: Tensor) -> Tensor:
        within = pool[:, :, : self.span]
        return within[self.rows.run] if self.rows.run is not None else within.index_select(0, self.rows.index)
