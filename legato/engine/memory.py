"""Memory use of an engine, for logs and `legato doctor`.

Computed from tensor shapes, without allocating. One position of a sequence needs keys and values in every layer of the
talker: 112 KiB in bfloat16 for the official models (28 layers, 8 heads of 128), twice that in float32. On a CPU the
operating system allocates pages on first use, so slots that were never full use less than computed here.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from legato.config.engine import EngineConfig
from legato.config.model import ModelConfig
from legato.models.codec.decoder import CodecDecoder
from legato.models.talker.state import TalkerCache

_KIB, _MIB = 2**10, 2**20


@dataclass(frozen=True, slots=True)
class EngineMemory:
    """Bytes of one talker position and of one codec slot, and the number of slots."""

    position_bytes: int
    codec_slot_bytes: int
    kv_slots: int
    max_seq_len: int
    codec_slots: int

    @property
    def kv_slot_bytes(self) -> int:
        """Bytes of one KV slot."""
        return self.position_bytes * self.max_seq_len

    @property
    def kv_bytes(self) -> int:
        """Bytes of all KV slots."""
        return self.kv_slot_bytes * self.kv_slots

    @property
    def codec_bytes(self) -> int:
        """Bytes of all codec slots."""
        return self.codec_slot_bytes * self.codec_slots

    def __str__(self) -> str:
        return (
            f"{self.kv_slots} KV slots of {self.max_seq_len} positions at {self.position_bytes / _KIB:g} KiB: "
            f"{self.kv_bytes / _MIB:.0f} MiB; {self.codec_slots} codec slots at {self.codec_slot_bytes / _MIB:.1f} MiB:"
            f" {self.codec_bytes / _MIB:.0f} MiB"
        )


def allocated_memory(cache: TalkerCache, codec_slot_bytes: int, config: EngineConfig) -> EngineMemory:
    """Memory of the allocated slots."""
    return EngineMemory(
        position_bytes=cache.bytes_per_position,
        codec_slot_bytes=codec_slot_bytes,
        kv_slots=cache.slots,
        max_seq_len=cache.positions,
        codec_slots=config.max_num_seqs,
    )


def plan_memory(
    model: ModelConfig,
    config: EngineConfig,
    *,
    talker_dtype: torch.dtype = torch.float32,
    codec_dtype: torch.dtype = torch.float32,
) -> EngineMemory:
    """Memory that an engine with this config would allocate, without the weights."""
    with torch.device("meta"):
        cache = TalkerCache.allocate(model.talker.stack, config.kv_slots, config.max_seq_len, talker_dtype, "meta")
        history = CodecDecoder(model.codec.decoder).initial_history(1, codec_dtype)
    return allocated_memory(cache, history.row_bytes, config)
