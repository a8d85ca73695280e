"""Negative controls for the comparison with solo runs: each injects one fault, which must be detected.

Faults: swapped rows, a shared slot, wrong positions and lengths, stale leases, slot leaks, swapped codec histories, NaN
in a slot, and a cancel that only stops sending.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable

import numpy as np
import pytest
import torch

from legato.engine.leases import KVLease
from legato.errors import StateError
from legato.models.talker.state import KVRows
from legato.types import SequenceId, StreamId, TextLayout
from tests.engine.harness import SHORT, Harness
from tests.engine.test_batch_composition import TEXTS, Utterance, solo


def differs_from_solo(harness: Harness, utterances: list[Utterance]) -> bool:
    """Run all and return whether any differs from its solo run in codes, samples or by an error."""
    received = [utterance.submit(harness)[1] for utterance in utterances]
    try:
        harness.run()
    except (AssertionError, StateError):
        return True
    wanted = [solo(utterance, 64) for utterance in utterances]
    return any(
        bool(each.errors)
        or tuple(harness.codes(utterance.seed)) != codes
        or float(np.abs(each.samples - samples).max()) > 1e-3
        for utterance, each, (codes, samples) in zip(utterances, received, wanted, strict=True)
    )


PAIR = [Utterance(TEXTS[2], 500), Utterance(TEXTS[1], 501)]


def test_comparison_with_solo_runs_passes_without_a_fault() -> None:
    assert not differs_from_solo(Harness(segments=SHORT), PAIR)


def test_control_swapped_batch_rows_are_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    harness = Harness(segments=SHORT)
    right = harness.kv.rows
    swaps = iter([False] * 3 + [True] + [False] * 1000)

    def swapped(leases: list[KVLease]) -> KVRows:
        return right(leases[::-1] if next(swaps) else leases)

    monkeypatch.setattr(harness.kv, "rows", swapped)
    assert differs_from_solo(harness, PAIR)


def test_control_shared_kv_slot_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    harness = Harness(segments=SHORT)
    monkeypatch.setattr(harness.kv, "rows", lambda leases: KVRows.of([0] * len(leases)))
    assert differs_from_solo(harness, PAIR)


@pytest.mark.parametrize("model", ["talker", "codec"])
def test_control_wrong_row_lengths_are_detected(monkeypatch: pytest.MonkeyPatch, model: str) -> None:
    """Shorter rows of a batch are treated as if they had the length of the longest."""
    harness = Harness(segments=SHORT)
    part = harness.runner.backend.talker if model == "talker" else harness.codec_runner.backend.decoder
    forward: Callable[..., object] = part.forward
    argument = "lengths" if model == "talker" else "frames"
    place = list(inspect.signature(forward).parameters).index(argument)

    def all_as_long(*given: object, **named: object) -> object:
        return forward(*(each for index, each in enumerate(given) if index != place), **named)

    texts = ("ab", "a few words")
    pair = [Utterance(text, 500 + n, packets=(1 + n,), layout=TextLayout.WHOLE) for n, text in enumerate(texts)]
    assert not differs_from_solo(Harness(segments=SHORT), pair)
    monkeypatch.setattr(part, "forward", all_as_long)
    assert differs_from_solo(harness, pair)


def test_control_stale_lease_is_detected() -> None:
    """A sequence that goes on after its slot was released."""
    harness = Harness(segments=SHORT)
    PAIR[0].submit(harness)
    for _ in range(3):
        harness.step()
    harness.kv.release(harness.streams[0].sequences[0].slot.lease)
    with pytest.raises(StateError, match="stale lease"):
        harness.step()
    harness = Harness(segments=SHORT)
    PAIR[0].submit(harness)
    for _ in range(3):
        harness.step()
    lease = harness.streams[0].codec_lease
    assert lease is not None
    harness.codec.release(lease)
    with pytest.raises(StateError, match="stale lease"):
        harness.run()


def test_control_slot_leak_is_detected_when_engine_becomes_idle() -> None:
    for kind in ("talker", "codec"):
        harness = Harness(segments=SHORT)
        if kind == "talker":
            harness.kv.acquire(SequenceId(99))
        else:
            harness.codec.acquire(StreamId(99))
        PAIR[1].submit(harness)
        with pytest.raises(StateError, match="slot leak"):
            harness.run()


def test_control_wrong_position_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    harness = Harness(segments=SHORT)
    right = harness.runner.step

    def late(sequences: list[object]) -> None:
        for sequence in sequences:
            if sequence.frames == 2:  # type: ignore[attr-defined]
                sequence.slot.computed_positions += 1  # type: ignore[attr-defined]
        right(sequences)  # type: ignore[arg-type]

    monkeypatch.setattr(harness.runner, "step", late)
    assert differs_from_solo(harness, PAIR)


def test_control_swapped_codec_histories_are_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    harness = Harness(segments=SHORT)
    right = harness.codec.gather
    monkeypatch.setattr(harness.codec, "gather", lambda leases: right(leases[::-1]))
    received = [utterance.submit(harness)[1] for utterance in PAIR]
    harness.run()
    expected = [solo(utterance, 64)[1] for utterance in PAIR]
    assert any(np.abs(each.samples - want).max() > 1e-3 for each, want in zip(received, expected, strict=True))


def test_control_nan_in_leased_slot_fails_its_request() -> None:
    harness = Harness(segments=SHORT)
    _, received = PAIR[0].submit(harness)
    for _ in range(3):
        harness.step()
    with torch.inference_mode():
        harness.kv.cache.values[:, harness.streams[0].sequences[0].slot.lease.slot] = float("nan")
    harness.run()
    assert received.errors
    harness.assert_all_slots_free()


def test_control_cancel_that_only_stops_sending_is_detected() -> None:
    harness = Harness(segments=SHORT)
    _, received = PAIR[0].submit(harness)
    for _ in range(3):
        harness.step()
    harness.streams[0].on_event = lambda _event: None  # events are dropped, but the engine is not notified
    frames = harness.runner.frames_sampled
    harness.run()
    assert harness.runner.frames_sampled > frames
    assert not received.packets[-1].last
