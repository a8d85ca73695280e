"""Limits and settings of one engine, with the single documented default of each. Plain frozen values."""

from __future__ import annotations

from dataclasses import dataclass

from legato.config.deprecation import accept_old_names
from legato.errors import InputError

ENGINE_RENAMES = {
    "streams": "max_num_seqs",
    "positions": "max_seq_len",
    "queue": "max_queue",
    "graphs": "cuda_graphs",
}
"""Field names of version 0.1 and their current names."""


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Limits and settings of one engine.

    `max_num_seqs`: streams that generate at the same time. Each has one codec slot.
    `kv_slots`: KV slots of the talker; 0 means `max_num_seqs` + 1. One more than `max_num_seqs` lets the engine prefill
    the next segment of a long text while the current segment is still being generated.
    `max_seq_len`: prompt positions and frames of one sequence. 2,048 is about two and a half minutes of audio.
    `legato doctor --model` prints the memory that this takes.
    `prefill_positions`: prompt positions computed in one engine step.
    `live_prefill_positions`: the same while a live stream has less than a second of buffered audio, so that it does not
    underrun. Deterministic mode always uses the smaller of the two.
    `max_batch_size`: sequences decoded in one engine step. If more are ready, those with the most buffered audio wait.
    `max_queue`: streams that may wait for a slot. One more is refused with `QueueFullError`.
    `yield_s`: a stream that has been unable to use its slots for this long, because its client sends no text or takes
    no audio, gives them to a waiting stream. It goes on later with the same result.
    `parked_bytes`: memory for the state of such streams. When it is full, they keep their slots.
    `voice_cache_bytes`: size of the cache of cloned voices.
    `prefix_cache_bytes`: size of the cache of prompt prefixes (same voice or instruction); 0 disables it.
    `deterministic`: on a CPU in float32, the same request and seed give bit-identical codes and samples for every batch
    composition. Models whose backend is not batch-invariant then run with batch size 1.
    `cuda_graphs`: on CUDA, capture the work of a step as CUDA graphs before the engine is ready. No effect on a CPU.
    """

    max_num_seqs: int = 1
    kv_slots: int = 0
    max_seq_len: int = 2048
    prefill_positions: int = 512
    live_prefill_positions: int = 64
    max_batch_size: int = 64
    max_queue: int = 64
    yield_s: float = 1.0
    parked_bytes: int = 2**30
    voice_cache_bytes: int = 256 * 2**20
    prefix_cache_bytes: int = 64 * 2**20
    deterministic: bool = False
    cuda_graphs: bool = True

    @property
    def rows_per_call(self) -> int:
        """Batch size of one model call where the backend is not batch-invariant."""
        return 1 if self.deterministic else self.kv_slots

    @property
    def prefill_limits(self) -> tuple[int, int]:
        """Prompt positions computed in one step: the maximum, and the maximum while a live stream may underrun."""
        live = min(self.live_prefill_positions, self.prefill_positions)
        return live if self.deterministic else self.prefill_positions, live

    def __post_init__(self) -> None:
        if self.kv_slots == 0:
            object.__setattr__(self, "kv_slots", self.max_num_seqs + 1)
        at_least_one = ("max_num_seqs", "kv_slots", "max_seq_len", "prefill_positions", "live_prefill_positions")
        for name in (*at_least_one, "max_batch_size", "max_queue", "voice_cache_bytes"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} must be at least 1, not {getattr(self, name)}", field=name)
        if self.prefix_cache_bytes < 0:
            raise InputError(
                f"prefix_cache_bytes must be 0 or more, not {self.prefix_cache_bytes}", field="prefix_cache_bytes"
            )
        if self.parked_bytes < 0:
            raise InputError(f"parked_bytes must be 0 or more, not {self.parked_bytes}", field="parked_bytes")
        if not 0 <= self.yield_s < float("inf"):
            raise InputError(f"yield_s must be 0 or more seconds, not {self.yield_s}", field="yield_s")
        if self.kv_slots < self.max_num_seqs:
            raise InputError(
                f"kv_slots ({self.kv_slots}) must be at least max_num_seqs ({self.max_num_seqs}): "
                "each active stream needs a KV slot",
                field="kv_slots",
            )


EngineConfig.__init__ = accept_old_names(**ENGINE_RENAMES)(EngineConfig.__init__)  # type: ignore[method-assign]
