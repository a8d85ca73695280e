"""Failures of one stream do not affect others: invalid samples, refused segments, front-end errors, long texts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest

from legato.engine import core
from legato.engine.codec_runner import Window
from legato.engine.sequence import Sequence as TalkerSequence
from legato.engine.sequence import SequenceState
from legato.engine.text_intake import PIECE_CHARS
from legato.errors import GenerationError, LegatoError, NonFiniteError, TextTooLongError
from legato.models.voice import ClonedVoice
from legato.types import FinishReason, StreamId, TextLayout
from tests.engine.harness import SHORT, Harness, Received
from tests.engine.test_core import harness
from tests.engine.tiny import LetterTokenizer

Samples = npt.NDArray[np.float32]
TEXT = "some text for all"


def replace_samples(h: Harness, stream: StreamId, value: float) -> None:
    """From now on the codec returns `value` for all samples of one stream."""
    decode = h.codec_runner.decode

    def replaced(windows: Sequence[Window]) -> list[Samples]:
        return [
            np.full_like(samples, value) if window.lease.stream == stream else samples
            for window, samples in zip(windows, decode(windows), strict=True)
        ]

    h.codec_runner.decode = replaced  # type: ignore[method-assign]


def deterministic(stops: dict[int, int], **options: object) -> Harness:
    """With one row per call, an unaffected stream is bit-identical."""
    return harness(stops, rows_per_call=1, **options)


def assert_equals_solo(received: Received, frames: int) -> None:
    alone = deterministic({2: frames})
    _, solo = alone.submit(TEXT, seed=2)
    alone.run()
    assert received.frames == frames
    assert np.array_equal(received.samples, solo.samples)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_non_finite_samples_fail_only_their_own_stream(value: float) -> None:
    h = deterministic({1: 9, 2: 9})
    stream, failing = h.submit(TEXT, seed=1)
    _, other = h.submit(TEXT, seed=2)
    replace_samples(h, stream, value)
    h.run()
    assert [type(error) for error in failing.errors] == [NonFiniteError]
    assert not failing.packets
    assert_equals_solo(other, 9)
    h.assert_all_slots_free()


def test_silent_stream_is_ended_and_its_slot_released() -> None:
    h = deterministic({1: 10**9, 2: 9}, positions=256)
    stream, silent = h.submit("a long text " * 20, seed=1)
    _, other = h.submit(TEXT, seed=2)
    replace_samples(h, stream, 1e-4)
    h.run()
    assert silent.reason is FinishReason.SILENCE
    assert silent.frames < 64
    assert_equals_solo(other, 9)
    h.assert_all_slots_free()


def test_later_segment_that_cannot_fit_fails_only_its_own_stream() -> None:
    h = harness({1: 9, 2: 9}, segments=SHORT, positions=40)
    _, failing = h.submit("First. And this segment is far too long", seed=1, layout=TextLayout.WHOLE)
    _, other = h.submit("Two words", seed=2)
    h.run()
    assert [type(error) for error in failing.errors] == [TextTooLongError]
    assert "40" in str(failing.errors[0])
    assert other.frames == 9
    h.assert_all_slots_free()


def test_text_longer_than_a_slot_is_refused_before_any_compute() -> None:
    h = harness({1: 9}, positions=64)
    _, failing = h.submit("x" * 80)
    h.run()
    assert isinstance(failing.errors[0], TextTooLongError)
    assert h.runner.frames_sampled == 0


def test_max_frames_beyond_slot_of_later_segment_is_reached() -> None:
    h = harness({1: 10**9, 2: 9}, segments=SHORT, positions=64)
    _, received = h.submit("A first sentence. The second one, longer.", seed=1, layout=TextLayout.WHOLE, max_frames=30)
    _, other = h.submit(TEXT, seed=2)
    h.run()
    assert not received.errors
    assert received.reason is FinishReason.MAX_FRAMES
    assert received.frames == 30
    assert other.frames == 9


def test_front_end_error_fails_only_its_own_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    append = LetterTokenizer.append

    def picky(tokenizer: LetterTokenizer, text: str) -> None:
        if "!" in text:
            raise IndexError("no such word")
        append(tokenizer, text)

    monkeypatch.setattr(LetterTokenizer, "append", picky)
    h = deterministic({1: 9, 2: 9})
    _, failing = h.submit("an odd one!", seed=1)
    _, other = h.submit(TEXT, seed=2)
    h.run()
    assert isinstance(failing.errors[0], GenerationError)
    assert "no such word" in str(failing.errors[0])
    assert_equals_solo(other, 9)
    h.assert_all_slots_free()


def test_failed_slot_allocation_releases_its_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    h = deterministic({1: 9, 2: 9})
    add_sequence = h.runner.add_sequence

    def no_memory(sequence: TalkerSequence, voice: ClonedVoice | None) -> None:
        if sequence.seed == 1:
            raise MemoryError("for its reference")
        add_sequence(sequence, voice)

    monkeypatch.setattr(h.runner, "add_sequence", no_memory)
    _, failing = h.submit(TEXT, seed=1)
    _, other = h.submit(TEXT, seed=2)
    h.run()
    assert isinstance(failing.errors[0], LegatoError)
    assert_equals_solo(other, 9)
    h.assert_all_slots_free()


def test_long_text_is_processed_in_small_pieces_between_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[tuple[int, int]] = []
    append = LetterTokenizer.append

    def slow(tokenizer: LetterTokenizer, text: str) -> None:
        reads.append((number, len(text)))
        h.now_s += core.TEXT_BUDGET_S  # one piece takes the time budget of a step
        append(tokenizer, text)

    monkeypatch.setattr(LetterTokenizer, "append", slow)
    h = harness({1: 4, 2: 4}, segments=SHORT)
    _, book = h.submit("A sentence of a book. " * 40, seed=1)
    _, short = h.submit("Short.", seed=2)
    for number in range(12):  # noqa: B007
        h.step()
    assert short.packets[-1].last  # it was not delayed by the long text
    assert max(length for _, length in reads) <= PIECE_CHARS
    assert reads[-1][0] == 11
    h.run()
    assert book.frames == 4 * len(h.streams[0].sequences)
    h.assert_all_slots_free()


def test_pauses_for_text_or_slots_do_not_change_output() -> None:
    """R63: a slot's positions are reserved at admission, so a sequence is never preempted and recomputed."""
    text = "ab cd ef gh ij"
    alone = Harness()
    _, solo = alone.submit(text, seed=5, max_frames=18)
    alone.run()
    h = Harness(streams=1)
    h.submit(text, seed=4, max_frames=6)
    stream, received = h.submit("", seed=5, max_frames=18, ended=False)
    for piece in text:
        h.append(stream, piece)
        h.run()
    assert h.streams[1].sequences[0].state is SequenceState.WAITING_FOR_TEXT
    h.end(stream)
    h.run()
    assert h.codes(5) == alone.codes(5)
    np.testing.assert_allclose(received.samples, solo.samples, atol=2e-5)
    h.assert_all_slots_free()
