"""How many rows go into one call of a model: all at once; where determinism is asked for, as many as change no bit.
Owns nothing.

Kernels may add numbers up in another order when the shape of a batch changes. With one row a call, the shapes that a
request sees depend on that request alone, so its codes and samples are the same to the bit in any company. Parts that
promise that for any batch need not be called so.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from legato.config.engine import EngineConfig
from legato.models.invariance import BatchInvariant

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class RowsPerCall:
    """Rows that one call computes together: of the talker, the draw of codebook 0, the code predictor, the codec."""

    talker: int
    first_code: int
    predictor: int
    codec: int

    @staticmethod
    def same(rows: int) -> RowsPerCall:
        """The same everywhere."""
        return RowsPerCall(rows, rows, rows, rows)

    @staticmethod
    def of(config: EngineConfig, invariant: BatchInvariant) -> RowsPerCall:
        """All that there are; in deterministic mode one, but of parts that are `invariant`."""
        few, many = config.rows_per_call, config.kv_slots
        return RowsPerCall(*(many if part else few for part in invariant))


def batches(items: Sequence[Item], rows: int) -> Iterator[Sequence[Item]]:
    """`items` in order, in groups of at most `rows`."""
    for start in range(0, len(items), rows):
        yield items[start : start + rows]
