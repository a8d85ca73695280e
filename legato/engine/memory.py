"""What the slots of an engine cost in memory. Pure arithmetic over shapes; allocates nothing and knows no stream.

A position of a sequence takes keys and values in every layer of the talker: 112 KiB in bfloat16 for the official
models (28 layers, 8 heads of 128), twice that in float32. On a CPU the system hands memory out when it is first
touched, so slots that were never full cost less than what is written here.
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
    """Bytes of one talker position, and of one stream's codec history; and how many of each there are."""

    position_bytes: int
    codec_slot_bytes: int
    kv_slots: int
    positions: int
    streams: int

    @property
    def kv_slot_bytes(self) -> int:
        """One sequence's positions."""
        return self.position_bytes * self.positions

    @property
    def kv_bytes(self) -> int:
        """All talker slots."""
        return self.kv_slot_bytes * self.kv_slots

    @property
    def codec_bytes(self) -> int:
        """All codec slots."""
        return self.codec_slot_bytes * self.streams

    def __str__(self) -> str:
        return (
            f"{self.kv_slots} talker slots of {self.positions} positions at {self.position_bytes / _KIB:g} KiB: "
            f"{self.kv_bytes / _MIB:.0f} MiB; {self.streams} codec slots at {self.codec_slot_bytes / _MIB:.1f} MiB: "
            f"{self.codec_bytes / _MIB:.0f} MiB"
        )


def memory_of(cache: TalkerCache, codec_slot_bytes: int, config: EngineConfig) -> EngineMemory:
    """The memory of slots that exist."""
    return EngineMemory(cache.bytes_per_position, codec_slot_bytes, cache.slots, cache.positions, config.streams)


def plan_memory(
    model: ModelConfig,
    config: EngineConfig,
    *,
    talker_dtype: torch.dtype = torch.float32,
    codec_dtype: torch.dtype = torch.float32,
) -> EngineMemory:
    """The memory that an engine would take, without weights and without allocating it."""
    with torch.device("meta"):
        cache = TalkerCache.allocate(model.talker.stack, config.kv_slots, config.positions, talker_dtype, "meta")
        history = CodecDecoder(model.codec.decoder).fresh(1, codec_dtype)
    return memory_of(cache, history.row_bytes, config)
