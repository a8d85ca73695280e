"""Progress of downloading, loading or writing a checkpoint.

Values of `Progress` are passed to the caller's callback.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Progress:
    """`done` of `total` bytes of a stage: "download", "load" or "write". `item`: the current file or part."""

    stage: str
    item: str
    done: int
    total: int


ProgressCallback = Callable[[Progress], None]
