"""Limits and settings of one engine, frozen, with the one documented default of each. Knows no checkpoint."""

from __future__ import annotations

from dataclasses import dataclass

from legato.errors import InputError


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """How much one engine holds and computes at once.

    `streams`: streams that speak at the same time; each has one codec slot.
    `kv_slots`: sequences that hold talker positions at once. One more than `streams` lets the next segment of a long
    text be prefilled while the present one still speaks.
    `positions`: prompt and frames that one sequence may take; 2,048 is about two and a half minutes. The memory it
    costs is printed by `legato doctor --model`.
    `prefill_positions`: prompt positions computed in one turn. `prefill_beside`: the same beside a listener with less
    than a second in hand, so that running streams keep their pace; deterministic mode always keeps to the smaller.
    `rows_per_turn`: sequences that step in one turn; of more than these, those with the most sound in hand wait.
    `queue`: streams that may wait for a slot; one more is refused.
    `voice_cache_bytes`: cloned voices kept for reuse.
    `prefix_cache_bytes`: talker positions kept for the next request with the same voice or instruction; 0 keeps none.
    `deterministic`: on a CPU in float32 the same request and seed give the same codes and samples to the bit, alone and
    in any company. Calls have one row, but of parts that change no bit of it in any batch (what is compiled for this
    CPU), so it costs the gain of batching elsewhere alone.
    `graphs`: on CUDA the work of a step is recorded before the engine is ready, and then launched by one call. On a CPU
    there is nothing to record.
    """

    streams: int = 1
    kv_slots: int = 2
    positions: int = 2048
    prefill_positions: int = 512
    prefill_beside: int = 64
    rows_per_turn: int = 64
    queue: int = 64
    voice_cache_bytes: int = 256 * 2**20
    prefix_cache_bytes: int = 64 * 2**20
    deterministic: bool = False
    graphs: bool = True

    @property
    def rows_per_call(self) -> int:
        """Rows that one call of a model computes together, where a batch may change how a row is rounded."""
        return 1 if self.deterministic else self.kv_slots

    @property
    def prefill_per_turn(self) -> tuple[int, int]:
        """Prompt positions that a turn computes: at most, and beside a listener who could run dry."""
        beside = min(self.prefill_beside, self.prefill_positions)
        return beside if self.deterministic else self.prefill_positions, beside

    def __post_init__(self) -> None:
        prefill = ("prefill_positions", "prefill_beside")
        for name in ("streams", "kv_slots", "positions", *prefill, "rows_per_turn", "queue", "voice_cache_bytes"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} must be at least 1, not {getattr(self, name)}", field=name)
        if self.prefix_cache_bytes < 0:
            raise InputError(
                f"prefix_cache_bytes must be 0 or more, not {self.prefix_cache_bytes}", field="prefix_cache_bytes"
            )
        if self.kv_slots < self.streams:
            raise InputError(
                f"kv_slots ({self.kv_slots}) must be at least streams ({self.streams}): a stream that speaks needs one",
                field="kv_slots",
            )
