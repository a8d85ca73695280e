"""How far fetching or loading a checkpoint has come: a value handed to the caller's callback. Knows neither."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Progress:
    """`done` of `total` bytes of a stage: "download", "load" or "write". `item` is the file or the part at work."""

    stage: str
    item: str
    done: int
    total: int


ProgressCallback = Callable[[Progress], None]
