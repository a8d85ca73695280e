"""Rows per model call: all, or one for parts that are not batch-invariant in deterministic mode."""

from __future__ import annotations

from legato.backends.base import BatchInvariance
from legato.config.engine import EngineConfig
from legato.engine.batches import RowsPerCall, batches

NOTHING, ALL = BatchInvariance(), BatchInvariance(talker=True, first_code=True, predictor=True, codec=True)
CODEC = BatchInvariance(talker=False, first_code=False, predictor=False, codec=True)
SAMPLING = BatchInvariance(talker=False, first_code=True, predictor=True, codec=False)


def test_all_rows_are_batched_without_deterministic_mode() -> None:
    config = EngineConfig(max_num_seqs=4, kv_slots=5)
    assert RowsPerCall.from_config(config, NOTHING) == RowsPerCall.from_config(config, ALL) == RowsPerCall.uniform(5)


def test_deterministic_mode_batches_only_batch_invariant_parts() -> None:
    config = EngineConfig(max_num_seqs=4, kv_slots=5, deterministic=True)
    assert RowsPerCall.from_config(config, NOTHING) == RowsPerCall.uniform(1)
    assert RowsPerCall.from_config(config, CODEC) == RowsPerCall(talker=1, first_code=1, predictor=1, codec=5)
    assert RowsPerCall.from_config(config, SAMPLING) == RowsPerCall(talker=1, first_code=5, predictor=5, codec=1)
    assert RowsPerCall.from_config(config, ALL) == RowsPerCall.uniform(5)


def test_batches_keep_order_and_are_as_large_as_allowed() -> None:
    assert list(batches([1, 2, 3, 4, 5], 2)) == [[1, 2], [3, 4], [5]]
    assert list(batches([], 2)) == []
