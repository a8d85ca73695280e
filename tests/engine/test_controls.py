"""Controls of the comparison with solo runs: each breaks one thing, and the comparison must notice.

A row swap, one cache for two, wrong positions and lengths, stale and lost leases, another's history, poison, and a
cancel that only stops sending.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable

import numpy as np
import pytest
import torch

from legato.engine.leases import KVLease
from legato.errors import StateError
from legato.flow import SequenceId, StreamId, TextLayout
from legato.models.talker.state import KVRows
from tests.engine.harness import SHORT, Harness
from tests.engine.test_company import TEXTS, Ask, solo


def differs_from_solo(harness: Harness, asks: list[Ask]) -> bool:
    """Run all and tell whether any differs from its solo run, in codes or audibly; an error counts, too."""
    heard = [ask.submit(harness)[1] for ask in asks]
    try:
        harness.run()
    except (AssertionError, StateError):
        return True
    wanted = [solo(ask, 64) for ask in asks]
    return any(
        bool(each.errors)
        or tuple(harness.codes(ask.seed)) != codes
        or float(np.abs(each.samples - samples).max()) > 1e-3
        for ask, each, (codes, samples) in zip(asks, heard, wanted, strict=True)
    )


PAIR = [Ask(TEXTS[2], 500), Ask(TEXTS[1], 501)]


def test_the_comparison_passes_when_nothing_is_broken() -> None:
    assert not differs_from_solo(Harness(segments=SHORT), PAIR)


def test_control_a_row_swap_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    harness = Harness(segments=SHORT)
    right = harness.kv.rows
    swaps = iter([False] * 3 + [True] + [False] * 1000)

    def swapped(leases: list[KVLease]) -> KVRows:
        return right(leases[::-1] if next(swaps) else leases)

    monkeypatch.setattr(harness.kv, "rows", swapped)
    assert differs_from_solo(harness, PAIR)


def test_control_one_cache_handed_to_two_requests_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    harness = Harness(segments=SHORT)
    monkeypatch.setattr(harness.kv, "rows", lambda leases: KVRows.of([0] * len(leases)))
    assert differs_from_solo(harness, PAIR)


@pytest.mark.parametrize("model", ["talker", "codec"])
def test_control_a_wrong_length_is_caught(monkeypatch: pytest.MonkeyPatch, model: str) -> None:
    """The rows of a batch that are shorter than the longest, taken for as long."""
    harness = Harness(segments=SHORT)
    part = harness.runner._talker if model == "talker" else harness.stage._decoder
    forward: Callable[..., object] = part.forward
    argument = "lengths" if model == "talker" else "frames"
    place = list(inspect.signature(forward).parameters).index(argument)

    def all_as_long(*given: object, **named: object) -> object:
        return forward(*(each for at, each in enumerate(given) if at != place), **named)

    texts = ("ab", "a few words")
    pair = [Ask(text, 500 + n, packets=(1 + n,), layout=TextLayout.WHOLE) for n, text in enumerate(texts)]
    assert not differs_from_solo(Harness(segments=SHORT), pair)
    monkeypatch.setattr(part, "forward", all_as_long)
    assert differs_from_solo(harness, pair)


def test_control_a_stale_lease_is_caught() -> None:
    """A sequence that goes on after its slot was given back, and perhaps to somebody else."""
    harness = Harness(segments=SHORT)
    PAIR[0].submit(harness)
    for _ in range(3):
        harness.turn()
    harness.kv.release(harness.streams[0].sequences[0].seat.lease)
    with pytest.raises(StateError, match="stale lease"):
        harness.turn()
    harness = Harness(segments=SHORT)
    PAIR[0].submit(harness)
    for _ in range(3):
        harness.turn()
    harness.codec.release(harness.streams[0].leases[0])
    with pytest.raises(StateError, match="stale lease"):
        harness.run()


def test_control_a_slot_that_was_not_given_back_is_noticed_as_soon_as_nobody_speaks() -> None:
    for kind in ("talker", "codec"):
        harness = Harness(segments=SHORT)
        if kind == "talker":
            harness.kv.acquire(SequenceId(99))
        else:
            harness.codec.acquire(StreamId(99), [])
        PAIR[1].submit(harness)
        with pytest.raises(StateError, match="not given back"):
            harness.run()


def test_control_a_wrong_position_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    harness = Harness(segments=SHORT)
    right = harness.runner.step

    def late(sequences: list[object]) -> None:
        for sequence in sequences:
            if sequence.frames == 2:  # type: ignore[attr-defined]
                sequence.seat.positions += 1  # type: ignore[attr-defined]
        right(sequences)  # type: ignore[arg-type]

    monkeypatch.setattr(harness.runner, "step", late)
    assert differs_from_solo(harness, PAIR)


def test_control_a_codec_history_of_another_stream_is_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    harness = Harness(segments=SHORT)
    right = harness.codec.gather
    monkeypatch.setattr(harness.codec, "gather", lambda leases: right(leases[::-1]))
    heard = [ask.submit(harness)[1] for ask in PAIR]
    harness.run()
    expected = [solo(ask, 64)[1] for ask in PAIR]
    assert any(np.abs(each.samples - want).max() > 1e-3 for each, want in zip(heard, expected, strict=True))


def test_control_poison_in_a_leased_slot_fails_its_request() -> None:
    harness = Harness(segments=SHORT)
    _, heard = PAIR[0].submit(harness)
    for _ in range(3):
        harness.turn()
    with torch.inference_mode():
        harness.kv.cache.values[:, harness.streams[0].sequences[0].seat.lease.slot] = float("nan")
    harness.run()
    assert heard.errors
    harness.assert_balanced()


def test_control_a_cancel_that_only_stops_sending_is_caught_by_the_counter() -> None:
    harness = Harness(segments=SHORT)
    _, heard = PAIR[0].submit(harness)
    for _ in range(3):
        harness.turn()
    harness.streams[0].sink = lambda _event: None  # the client is gone, and nobody told the loop
    drawn = harness.runner.frames_drawn
    harness.run()
    assert harness.runner.frames_drawn > drawn
    assert not heard.packets[-1].last
