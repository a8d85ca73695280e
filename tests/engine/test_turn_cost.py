"""What a turn costs: the same the first time as later, and no more for its seeds. In CPU time of this thread alone.

The fake parts are as small as can be, so that what should cost nothing would show.
"""

from __future__ import annotations

import time
from collections import defaultdict
from statistics import median

import pytest

from legato.engine import runner
from tests.engine.harness import WARM, Harness


def spent_s(h: Harness) -> float:
    """CPU time of one turn."""
    began_s = time.thread_time()
    h.turn()
    return time.thread_time() - began_s


def speak(h: Harness, streams: int, frames: int) -> list[float]:
    """That many streams at once, and what each turn in which all of them step took."""
    for seed in range(streams):
        h.submit("text" + " and more of it" * (seed % 3), seed=seed, sampling=WARM, max_frames=frames, packets=(1,))
    turns: list[float] = []
    while any(not stream.closed for stream in h.streams):
        turns.append(spent_s(h))
    h.streams.clear()
    h.assert_balanced()
    return turns


def test_a_size_of_batch_costs_no_more_the_first_time_than_later() -> None:
    """R65: nothing is compiled, captured or set up for a size or a length when it first comes."""
    h = Harness(streams=8, prefill_positions=1000)
    speak(h, 3, 4)  # a warm-up as the server does it: a few frames
    ratios: dict[int, list[float]] = defaultdict(list)
    for streams in (1, 2, 4, 5, 6, 7, 8):
        first, *later = speak(h, streams, 8)[1:-1]
        ratios[streams].append(first / median(later))
    assert median(ratio for each in ratios.values() for ratio in each) < 3


def test_seeds_cost_a_batch_of_eight_next_to_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """R20: noise is a function of seed and place, for all rows and codebooks in one draw."""

    def batch_s() -> float:
        return min(sum(speak(Harness(streams=8, prefill_positions=1000), 8, 5)) for _ in range(3))

    seeded_s = batch_s()
    monkeypatch.setattr(runner, "uniforms", lambda _seed, _sequence, _frame, codebooks: (0.5,) * codebooks)
    assert seeded_s < 1.3 * batch_s()
