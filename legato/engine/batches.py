"""Batch size per model call: the whole batch, or 1 for deterministic output on a backend that is not batch-invariant.

Kernels may sum in a different order when the batch shape changes. With one row per call, tensor shapes depend only on
the request itself, so its codes and samples are bit-identical for every batch composition.
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
    """Maximum batch size of one call of the talker, the sampler of codebook 0, the code predictor, and the codec."""

    talker: int
    first_code: int
    predictor: int
    codec: int

    @staticmethod
    def uniform(rows: int) -> RowsPerCall:
        """The same batch size for all four."""
        return RowsPerCall(rows, rows, rows, rows)

    @staticmethod
    def from_config(config: EngineConfig, invariance: BatchInvariance) -> RowsPerCall:
        """The whole batch for batch-invariant operations, else `config.rows_per_call`."""
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
    """Split `items`, in order, into batches of at most `rows`."""
    for start in range(0, len(items), rows):
        yield items[start : start + rows]
