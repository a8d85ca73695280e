"""Output of a request alone and in a batch: tiny models, random co-batched streams, pauses and cancels.

In deterministic mode (one row per call) codes and samples are bit-identical. With batched calls the codes of these
examples are equal and the samples agree within rounding. `test_controls.py` has the negative controls.
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
from legato.types import Frame, SamplingParams, StreamId, TextLayout
from tests.engine.harness import GREEDY, SHORT, WARM, Harness, Received

TEXTS = ("a", "two words", "a somewhat longer sentence of text", "First one. Second one.")
MAX_FRAMES = 6


@dataclass(frozen=True)
class Utterance:
    """One request: all inputs of its output."""

    text: str
    seed: int
    sampling: SamplingParams = WARM
    packets: tuple[int, ...] = (1, 2, 4)
    frames: int = MAX_FRAMES
    layout: TextLayout = TextLayout.STREAMING

    def submit(self, harness: Harness, *, ended: bool = True, text: str | None = None) -> tuple[StreamId, Received]:
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
def solo(utterance: Utterance, rows_per_call: int) -> tuple[tuple[Frame, ...], npt.NDArray[np.float32]]:
    """Codes and samples of a request alone in a new engine."""
    harness = Harness(segments=SHORT, streams=1, rows_per_call=rows_per_call)
    _, received = utterance.submit(harness)
    harness.run()
    return tuple(harness.codes(utterance.seed)), received.samples


UTTERANCES = st.lists(st.tuples(st.sampled_from(TEXTS), st.sampled_from([GREEDY, WARM])), min_size=2, max_size=4)


@settings(max_examples=5, deadline=None)
@given(UTTERANCES, st.data())
def test_deterministic_mode_is_bit_identical_for_any_batch_composition(
    picks: list[tuple[str, SamplingParams]], data: st.DataObject
) -> None:
    utterances = [Utterance(text, 100 + index, sampling) for index, (text, sampling) in enumerate(picks)]
    harness = Harness(segments=SHORT, rows_per_call=1, streams=3, prefill_positions=64)
    cancelled: set[int] = set()
    received: list[Received] = []
    ids: list[StreamId] = []
    for index, utterance in enumerate(utterances):
        cut = data.draw(st.integers(0, len(utterance.text)), label="cut of the text")
        stream, each = utterance.submit(harness, ended=False, text=utterance.text[:cut])
        ids.append(stream)
        received.append(each)
        for _ in range(data.draw(st.integers(0, 5), label="steps before the rest")):
            harness.step()
        harness.append(stream, utterance.text[cut:])
        harness.end(stream)
        if data.draw(st.integers(0, 3), label="cancel") == 0:
            victim = data.draw(st.integers(0, index), label="victim")
            harness.cancel(ids[victim])
            cancelled.add(victim)
    harness.run()
    harness.assert_all_slots_free()
    for index, utterance in enumerate(utterances):
        codes, samples = solo(utterance, 1)
        if index in cancelled:
            got = received[index].samples
            assert np.array_equal(got, samples[: len(got)])
        else:
            assert tuple(harness.codes(utterance.seed)) == codes
            assert np.array_equal(received[index].samples, samples)


@pytest.mark.parametrize("rows_per_call", [1, 64])
def test_output_is_independent_of_up_to_sixteen_co_batched_streams(rows_per_call: int) -> None:
    """Bit-identical in deterministic mode, else equal codes and samples within rounding. Slots were used before."""
    harness = Harness(segments=SHORT, streams=16, rows_per_call=rows_per_call, prefill_positions=1000)
    for number in range(16):  # cancelled streams, so that slots are reused in another order
        harness.cancel(Utterance(TEXTS[1], number).submit(harness)[0])
        for _ in range(number % 3):
            harness.step()
    batch_sizes: list[int] = []
    step = harness.runner.step

    def counted(sequences: Sequence[TalkerSequence]) -> None:
        batch_sizes.append(len(sequences))
        step(sequences)

    harness.runner.step = counted  # type: ignore[method-assign]
    layouts = list(TextLayout)  # prompts with equal and with different lengths
    utterances = [
        Utterance(TEXTS[number % 4], 600 + number, frames=2 + (7 * number) % 16, layout=layouts[number // 4 % 2])
        for number in range(16)
    ]
    received = [utterance.submit(harness)[1] for utterance in utterances]
    harness.run()
    harness.assert_all_slots_free()
    assert 16 in batch_sizes
    assert len(set(batch_sizes) - {0}) >= 14  # all batch sizes, unless two streams end in the same step
    for utterance, each in zip(utterances, received, strict=True):
        codes, samples = solo(utterance, rows_per_call)
        assert tuple(harness.codes(utterance.seed)) == codes
        np.testing.assert_allclose(each.samples, samples, rtol=0, atol=0 if rows_per_call == 1 else 2e-5)


def test_reused_slot_of_cancelled_stream_does_not_change_output() -> None:
    harness = Harness(segments=SHORT, streams=1, rows_per_call=1)
    for round_number in range(4):
        stream, _ = Utterance(TEXTS[3], 300 + round_number).submit(harness)
        for _ in range(3 + 2 * round_number):
            harness.step()
        harness.cancel(stream)
    utterance = Utterance(TEXTS[2], 399)
    _, received = utterance.submit(harness)
    harness.run()
    codes, samples = solo(utterance, 1)
    assert tuple(harness.codes(399)) == codes
    assert np.array_equal(received.samples, samples)


def test_packet_sizes_do_not_change_codes_or_samples() -> None:
    codes, samples = solo(Utterance(TEXTS[2], 7), 1)
    for packets in ((1,), (4,), (3, 1), (100,)):
        other_codes, other = solo(Utterance(TEXTS[2], 7, packets=packets), 1)
        assert other_codes == codes
        np.testing.assert_allclose(other, samples, atol=2e-5)


def test_other_seed_samples_other_codes() -> None:
    first, _ = solo(Utterance(TEXTS[2], 7), 1)
    other, _ = solo(Utterance(TEXTS[2], 8), 1)
    assert first != other
    greedy, _ = solo(Utterance(TEXTS[2], 7, GREEDY), 1)
    assert greedy == solo(Utterance(TEXTS[2], 8, GREEDY), 1)[0]
