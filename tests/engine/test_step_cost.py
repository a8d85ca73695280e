"""CPU time of an engine step: no first-use cost of a batch size, and little cost of seeded noise.

The models are tiny, so that such costs would be visible.
"""

from __future__ import annotations

import time
from collections import defaultdict
from statistics import median

import pytest

from legato.engine import model_runner as runner
from tests.engine.harness import WARM, Harness


def spent_s(h: Harness) -> float:
    """CPU time of one step on this thread."""
    began_s = time.thread_time()
    h.step()
    return time.thread_time() - began_s


def speak(h: Harness, streams: int, frames: int) -> list[float]:
    """Run `streams` streams together; returns the CPU time of each step."""
    for seed in range(streams):
        h.submit("text" + " and more of it" * (seed % 3), seed=seed, sampling=WARM, max_frames=frames, packets=(1,))
    steps_s: list[float] = []
    while any(not stream.closed for stream in h.streams):
        steps_s.append(spent_s(h))
    h.streams.clear()
    h.assert_all_slots_free()
    return steps_s


def test_first_use_of_a_batch_size_has_no_extra_cost() -> None:
    """R65: nothing is compiled, captured or set up for a size or a length when it first comes."""
    h = Harness(streams=8, prefill_positions=1000)
    speak(h, 3, 4)  # a warm-up like the server's: a few frames
    ratios: dict[int, list[float]] = defaultdict(list)
    for streams in (1, 2, 4, 5, 6, 7, 8):
        first, *later = speak(h, streams, 8)[1:-1]
        ratios[streams].append(first / median(later))
    assert median(ratio for each in ratios.values() for ratio in each) < 3


def test_seeded_noise_costs_little_in_a_batch_of_eight(monkeypatch: pytest.MonkeyPatch) -> None:
    """R20: noise is a function of seed and position, computed for all rows and codebooks at once."""

    def batch_s() -> float:
        return min(sum(speak(Harness(streams=8, prefill_positions=1000), 8, 5)) for _ in range(3))

    seeded_s = batch_s()
    monkeypatch.setattr(runner, "uniforms", lambda _seed, _sequence, _frame, codebooks: (0.5,) * codebooks)
    assert seeded_s < 1.3 * batch_s()
