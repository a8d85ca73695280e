"""Ways to cut a number of frames into windows, by name. Pure arithmetic; the random one depends on the seed alone.

Knows no codec: what a window is made of is its caller's business.
"""

from __future__ import annotations

import random

RANDOM_SIZES = (1, 2, 3, 7, 16, 40, 90)
ESSENTIAL = ("windows of 1", "windows of 4", "random windows")
"""Single frames, the engine's own packets, and sizes that nobody chose."""
SMALL = ("windows of 1", "windows of 4")
"""Those of many short calls."""
ALL = (*ESSENTIAL, "windows of 25", "two windows")


def partitions(frames: int, seed: int) -> dict[str, list[int]]:
    """Window sizes by the name of the partition; each sums to `frames`."""
    named = {f"windows of {size}": equal_windows(frames, size) for size in (1, 4, 25)}
    return {
        **named,
        "random windows": random_windows(frames, seed),
        "two windows": [frames - frames // 3, frames // 3],
    }


def equal_windows(frames: int, size: int) -> list[int]:
    """Windows of `size`, and the rest."""
    return [size] * (frames // size) + [frames % size] * (frames % size > 0)


def random_windows(frames: int, seed: int) -> list[int]:
    """Windows of sizes drawn from `RANDOM_SIZES`."""
    drawn = random.Random(seed)
    sizes: list[int] = []
    while sum(sizes) < frames:
        sizes.append(min(drawn.choice(RANDOM_SIZES), frames - sum(sizes)))
    return sizes
