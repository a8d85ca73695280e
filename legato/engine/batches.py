"""Rows per model call: all of them, or one where determinism is requested and the backend is not batch-invariant.

Kernels may sum in another order when the shape of a batch changes. With one row per call, the shapes that a request
sees depend on that request only, so its codes and samples have the same bits for any batch composition.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from legato.backends.base import BatchInvariance
from legato.config.engine import EngineConfig

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class RowsPerCall:
    """The most rows of one call of the talker, the sampler of codebook 0, the code predictor, and the codec."""

    talker: int
    first_code: int
    predictor: int
    codec: int

    @staticmethod
    def same(rows: int) -> RowsPerCall:
        """The same number for all four."""
        return RowsPerCall(rows, rows, rows, rows)

    @staticmethod
    def of(config: EngineConfig, invariance: BatchInvariance) -> RowsPerCall:
        """All rows for batch-invariant operations, else `config.rows_per_call`."""
        limit, all_rows = config.rows_per_call, config.kv_slots

        def rows(invariant: bool) -> int:
            return all_rows if invariant else limit

        return RowsPerCall(
            talker=rows(invariance.talker),
            first_code=rows(invariance.first_code),
            predictor=rows(invariance.predictor),
            codec=rows(invariance.codec),
        )


def batches(items: Sequence[Item], rows: int) -> Iterator[Sequence[Item]]:
    """Split `items`, in order, into groups of at most `rows`."""
    for start in range(0, len(items), rows):
        yield items[start : start + rows]
