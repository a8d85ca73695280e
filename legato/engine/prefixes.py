"""Talker positions that requests share: keys and values of the rows with which every prompt of a voice begins.

A clone's prompt starts with its header and its transcript, whatever text follows; an instruction stands before all
else. Keys and values of these rows depend on nothing behind them. Owns the copies for the life of the engine, within a
limit in bytes. They are known by content: the voice's digest and the rows themselves, never a label. Knows no slot and
no sequence.
"""

from __future__ import annotations

from collections import OrderedDict

from legato.engine.kv_pool import KVCopy
from legato.flow import PromptPlan, PromptRow

PrefixKey = tuple[str, tuple[PromptRow, ...]]
"""The digest of the voice ("": none), and the rows."""

LEAST_POSITIONS = 16
"""Fewer cost a call of their own and save almost nothing."""


def shared_positions(plan: PromptPlan) -> int:
    """The leading positions of a prompt that are computed apart, and kept: 0 where they are few.

    It depends on the prompt alone. So a prompt is cut in the same places whether its start was kept or not, and a
    deterministic engine says the same to the bit. Never the whole prompt: its last state is what speech begins with.
    """
    settled = min(plan.settled, len(plan.rows) - 1)
    return settled if settled >= LEAST_POSITIONS else 0


class PrefixStore:
    """The starts of prompts most recently used. Touched by the engine's thread alone."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._kept: OrderedDict[PrefixKey, KVCopy] = OrderedDict()

    @property
    def kept_bytes(self) -> int:
        """What the copies take."""
        return sum(copy.bytes for copy in self._kept.values())

    def find(self, key: PrefixKey) -> list[KVCopy]:
        """The kept start, or nothing."""
        if key not in self._kept:
            return []
        self._kept.move_to_end(key)
        return [self._kept[key]]

    def keep(self, key: PrefixKey, copy: KVCopy) -> None:
        """Into the store, and out with what was used longest ago; one that is too large alone is not kept."""
        self._kept[key] = copy
        self._kept.move_to_end(key)
        while self._kept and self.kept_bytes > self._limit_bytes:
            self._kept.popitem(last=False)
