"""How many rows go into a call: all, or one, or as many as change no bit."""

from __future__ import annotations

from legato.config.engine import EngineConfig
from legato.engine.batches import RowsPerCall, batches
from legato.models.invariance import BatchInvariant

NOTHING, ALL = BatchInvariant(*[False] * 4), BatchInvariant(*[True] * 4)
CODEC = BatchInvariant(talker=False, first_code=False, predictor=False, codec=True)
DRAWS = BatchInvariant(talker=False, first_code=True, predictor=True, codec=False)


def test_all_rows_go_together_unless_determinism_is_asked_for() -> None:
    config = EngineConfig(streams=4, kv_slots=5)
    assert RowsPerCall.of(config, NOTHING) == RowsPerCall.of(config, ALL) == RowsPerCall.same(5)


def test_in_deterministic_mode_parts_that_are_invariant_keep_their_batches() -> None:
    config = EngineConfig(streams=4, kv_slots=5, deterministic=True)
    assert RowsPerCall.of(config, NOTHING) == RowsPerCall.same(1)
    assert RowsPerCall.of(config, CODEC) == RowsPerCall(talker=1, first_code=1, predictor=1, codec=5)
    assert RowsPerCall.of(config, DRAWS) == RowsPerCall(talker=1, first_code=5, predictor=5, codec=1)
    assert RowsPerCall.of(config, ALL) == RowsPerCall.same(5)


def test_groups_are_in_order_and_as_large_as_allowed() -> None:
    assert list(batches([1, 2, 3, 4, 5], 2)) == [[1, 2], [3, 4], [5]]
    assert list(batches([], 2)) == []
