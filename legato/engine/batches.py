"""How many rows go into one call of a model: all at once for speed, one at a time for determinism. Owns nothing.

Kernels may add numbers up in another order when the shape of a batch changes. With one row a call, the shapes that a
request sees depend on that request alone, so its codes and samples are the same to the bit in any company.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

Item = TypeVar("Item")


def batches(items: Sequence[Item], rows: int) -> Iterator[Sequence[Item]]:
    """`items` in order, in groups of at most `rows`."""
    for start in range(0, len(items), rows):
        yield items[start : start + rows]
