"""The same request alone and in company: tiny real models, random strangers, pauses and cancels.

In deterministic mode (one row a call) codes and samples are equal to the bit. With whole batches a call the codes of
these examples are equal and the samples agree within rounding. The controls break what the claims protect.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from legato.engine.leases import KVLease
from legato.engine.sequence import Sequence as TalkerSequence
from legato.errors import StateError
from legato.flow import Frame, Sampling, SequenceId, StreamId, TextLayout
from legato.models.talker.state import KVRows
from tests.engine.harness import GREEDY, SHORT, WARM, Harness, Heard

TEXTS = ("a", "two words", "a somewhat longer sentence of text", "First one. Second one.")
MAX_FRAMES = 6


@dataclass(frozen=True)
class Ask:
    """One request: everything that its result may depend on."""

    text: str
    seed: int
    sampling: Sampling = WARM
    packets: tuple[int, ...] = (1, 2, 4)
    frames: int = MAX_FRAMES
    layout: TextLayout = TextLayout.STREAMING

    def submit(self, harness: Harness, *, ended: bool = True, text: str | None = None) -> tuple[StreamId, Heard]:
        return harness.submit(
            self.text if text is None else text,
            seed=self.seed,
            sampling=self.sampling,
            packets=self.packets,
            max_frames=self.frames,
            layout=self.layout,
            ended=ended,
        )


@lru_cache(maxsize=512)
def solo(ask: Ask, rows_per_call: int) -> tuple[tuple[Frame, ...], npt.NDArray[np.float32]]:
    """Codes and samples of a request alone in a fresh engine."""
    harness = Harness(segments=SHORT, streams=1, rows_per_call=rows_per_call)
    _, heard = ask.submit(harness)
    harness.run()
    return tuple(harness.codes(ask.seed)), heard.samples


ASKS = st.lists(st.tuples(st.sampled_from(TEXTS), st.sampled_from([GREEDY, WARM])), min_size=2, max_size=4)


@settings(max_examples=5, deadline=None)
@given(ASKS, st.data())
def test_in_deterministic_mode_company_changes_no_bit(picks: list[tuple[str, Sampling]], data: st.DataObject) -> None:
    asks = [Ask(text, 100 + index, sampling) for index, (text, sampling) in enumerate(picks)]
    harness = Harness(segments=SHORT, rows_per_call=1, streams=3, prefill_positions=64)
    cancelled: set[int] = set()
    heard: list[Heard] = []
    ids: list[StreamId] = []
    for index, ask in enumerate(asks):
        cut = data.draw(st.integers(0, len(ask.text)), label="cut of the text")
        stream, each = ask.submit(harness, ended=False, text=ask.text[:cut])
        ids.append(stream)
        heard.append(each)
        for _ in range(data.draw(st.integers(0, 5), label="turns before the rest")):
            harness.turn()
        harness.append(stream, ask.text[cut:])
        harness.end(stream)
        if data.draw(st.integers(0, 3), label="cancel") == 0:
            victim = data.draw(st.integers(0, index), label="victim")
            harness.cancel(ids[victim])
            cancelled.add(victim)
    harness.run()
    harness.assert_balanced()
    for index, ask in enumerate(asks):
        codes, samples = solo(ask, 1)
        if index in cancelled:
            got = heard[index].samples
            assert np.array_equal(got, samples[: len(got)])
        else:
            assert tuple(harness.codes(ask.seed)) == codes
            assert np.array_equal(heard[index].samples, samples)


@pytest.mark.parametrize("rows_per_call", [1, 64])
def test_one_among_any_number_of_strangers_up_to_sixteen_is_as_alone(rows_per_call: int) -> None:
    """To the bit in deterministic mode, else codes equal and samples within rounding; in shuffled, used slots."""
    harness = Harness(segments=SHORT, streams=16, rows_per_call=rows_per_call, prefill_positions=1000)
    for number in range(16):  # streams that are cancelled, from the last to the first and from the middle
        harness.cancel(Ask(TEXTS[1], number).submit(harness)[0])
        for _ in range(number % 3):
            harness.turn()
    together: list[int] = []
    step = harness.runner.step

    def counted(sequences: Sequence[TalkerSequence]) -> None:
        together.append(len(sequences))
        step(sequences)

    harness.runner.step = counted  # type: ignore[method-assign]
    layouts = list(TextLayout)  # prompts of one length, and of many
    asks = [
        Ask(TEXTS[number % 4], 600 + number, frames=2 + (7 * number) % 16, layout=layouts[number // 4 % 2])
        for number in range(16)
    ]
    heard = [ask.submit(harness)[1] for ask in asks]
    harness.run()
    harness.assert_balanced()
    assert 16 in together
    assert len(set(together) - {0}) >= 14  # all sizes of a batch, unless two happen to end in one turn
    for ask, each in zip(asks, heard, strict=True):
        codes, samples = solo(ask, rows_per_call)
        assert tuple(harness.codes(ask.seed)) == codes
        np.testing.assert_allclose(each.samples, samples, rtol=0, atol=0 if rows_per_call == 1 else 2e-5)


def test_a_slot_that_was_used_and_cancelled_leaves_no_trace() -> None:
    harness = Harness(segments=SHORT, streams=1, rows_per_call=1)
    for round_number in range(4):
        stream, _ = Ask(TEXTS[3], 300 + round_number).submit(harness)
        for _ in range(3 + 2 * round_number):
            harness.turn()
        harness.cancel(stream)
    ask = Ask(TEXTS[2], 399)
    _, heard = ask.submit(harness)
    harness.run()
    codes, samples = solo(ask, 1)
    assert tuple(harness.codes(399)) == codes
    assert np.array_equal(heard.samples, samples)


def test_the_cut_into_packets_changes_no_code_and_no_sample_beyond_rounding() -> None:
    codes, samples = solo(Ask(TEXTS[2], 7), 1)
    for packets in ((1,), (4,), (3, 1), (100,)):
        other_codes, other = solo(Ask(TEXTS[2], 7, packets=packets), 1)
        assert other_codes == codes
        np.testing.assert_allclose(other, samples, atol=2e-5)


def test_another_seed_or_segment_number_draws_other_codes() -> None:
    first, _ = solo(Ask(TEXTS[2], 7), 1)
    other, _ = solo(Ask(TEXTS[2], 8), 1)
    assert first != other
    greedy, _ = solo(Ask(TEXTS[2], 7, GREEDY), 1)
    assert greedy == solo(Ask(TEXTS[2], 8, GREEDY), 1)[0]


# --- controls: each breaks one thing, and the comparison above must notice -------------------------------------------


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
