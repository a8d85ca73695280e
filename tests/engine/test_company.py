"""The same request alone and in company: tiny real models, random strangers, pauses and cancels.

In deterministic mode (one row a call) codes and samples are equal to the bit. With whole batches a call the codes of
these examples are equal and the samples agree within rounding. `test_controls.py` breaks what the claims protect.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from legato.engine.sequence import Sequence as TalkerSequence
from legato.flow import Frame, Sampling, StreamId, TextLayout
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
