"""What goes wrong in one stream stays in one stream: bad samples, refused segments, broken front ends, long texts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest

from legato.engine import loop
from legato.engine.decode import Window
from legato.engine.intake import PIECE_CHARS
from legato.engine.sequence import Sequence as TalkerSequence
from legato.engine.sequence import SequenceState
from legato.errors import GenerationError, LegatoError, NonFiniteError, TextTooLongError
from legato.flow import FinishReason, StreamId, TextLayout
from legato.models.voice import Voice
from tests.engine.harness import SHORT, Harness, Heard
from tests.engine.test_loop import harness
from tests.engine.tiny import LetterTrack

Samples = npt.NDArray[np.float32]
TEXT = "some text for everyone"


def spoil(h: Harness, stream: StreamId, value: float) -> None:
    """From now on the codec makes `value` of all samples of one stream."""
    decode = h.stage.decode

    def spoilt(windows: Sequence[Window]) -> list[Samples]:
        return [
            np.full_like(samples, value) if window.lease.stream == stream else samples
            for window, samples in zip(windows, decode(windows), strict=True)
        ]

    h.stage.decode = spoilt  # type: ignore[method-assign]


def deterministic(stops: dict[int, int], **options: object) -> Harness:
    """A neighbour that does not notice a failure is the same to the bit."""
    return harness(stops, rows_per_call=1, **options)


def assert_as_alone(heard: Heard, frames: int) -> None:
    alone = deterministic({2: frames})
    _, solo = alone.submit(TEXT, seed=2)
    alone.run()
    assert heard.frames == frames
    assert np.array_equal(heard.samples, solo.samples)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_samples_that_are_not_finite_fail_their_own_stream_alone(value: float) -> None:
    h = deterministic({1: 9, 2: 9})
    stream, failing = h.submit(TEXT, seed=1)
    _, neighbour = h.submit(TEXT, seed=2)
    spoil(h, stream, value)
    h.run()
    assert [type(error) for error in failing.errors] == [NonFiniteError]
    assert not failing.packets
    assert_as_alone(neighbour, 9)
    h.assert_balanced()


def test_a_stream_that_falls_silent_is_ended_and_its_slot_is_free() -> None:
    h = deterministic({1: 10**9, 2: 9}, positions=256)
    stream, silent = h.submit("a long text " * 20, seed=1)
    _, neighbour = h.submit(TEXT, seed=2)
    spoil(h, stream, 1e-4)
    h.run()
    assert silent.reason is FinishReason.SILENCE
    assert silent.frames < 64
    assert_as_alone(neighbour, 9)
    h.assert_balanced()


def test_a_later_segment_that_cannot_fit_fails_its_stream_and_nobody_else() -> None:
    h = harness({1: 9, 2: 9}, segments=SHORT, positions=40)
    _, failing = h.submit("First. And this segment is far too long", seed=1, layout=TextLayout.WHOLE)
    _, neighbour = h.submit("Two words", seed=2)
    h.run()
    assert [type(error) for error in failing.errors] == [TextTooLongError]
    assert "40" in str(failing.errors[0])
    assert neighbour.frames == 9
    h.assert_balanced()


def test_known_text_that_needs_more_positions_than_a_slot_has_is_refused_before_any_compute() -> None:
    h = harness({1: 9}, positions=64)
    _, failing = h.submit("x" * 80)
    h.run()
    assert isinstance(failing.errors[0], TextTooLongError)
    assert h.runner.frames_drawn == 0


def test_a_callers_limit_beyond_what_a_later_slot_holds_ends_there_and_breaks_nothing() -> None:
    h = harness({1: 10**9, 2: 9}, segments=SHORT, positions=64)
    _, heard = h.submit("A first sentence. The second one, longer.", seed=1, layout=TextLayout.WHOLE, max_frames=30)
    _, neighbour = h.submit(TEXT, seed=2)
    h.run()
    assert not heard.errors
    assert heard.reason is FinishReason.MAX_FRAMES
    assert heard.frames == 30
    assert neighbour.frames == 9


def test_a_front_end_that_breaks_fails_its_own_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    append = LetterTrack.append

    def picky(track: LetterTrack, text: str) -> None:
        if "!" in text:
            raise IndexError("no such word")
        append(track, text)

    monkeypatch.setattr(LetterTrack, "append", picky)
    h = deterministic({1: 9, 2: 9})
    _, failing = h.submit("an odd one!", seed=1)
    _, neighbour = h.submit(TEXT, seed=2)
    h.run()
    assert isinstance(failing.errors[0], GenerationError)
    assert "no such word" in str(failing.errors[0])
    assert_as_alone(neighbour, 9)
    h.assert_balanced()


def test_a_sequence_that_cannot_be_seated_gives_its_slots_back(monkeypatch: pytest.MonkeyPatch) -> None:
    h = deterministic({1: 9, 2: 9})
    seat = h.runner.seat

    def no_memory(sequence: TalkerSequence, voices: Sequence[Voice]) -> None:
        if sequence.seed == 1:
            raise MemoryError("for its reference")
        seat(sequence, voices)

    monkeypatch.setattr(h.runner, "seat", no_memory)
    _, failing = h.submit(TEXT, seed=1)
    _, neighbour = h.submit(TEXT, seed=2)
    h.run()
    assert isinstance(failing.errors[0], LegatoError)
    assert_as_alone(neighbour, 9)
    h.assert_balanced()


def test_a_long_text_is_read_in_small_pieces_while_others_speak(monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[tuple[int, int]] = []
    append = LetterTrack.append

    def slow(track: LetterTrack, text: str) -> None:
        reads.append((turn, len(text)))
        h.now_s += loop.READING_S  # reading a piece takes all the time that a turn has for it
        append(track, text)

    monkeypatch.setattr(LetterTrack, "append", slow)
    h = harness({1: 4, 2: 4}, segments=SHORT)
    _, book = h.submit("A sentence of a book. " * 40, seed=1)
    _, short = h.submit("Short.", seed=2)
    for turn in range(12):  # noqa: B007
        h.turn()
    assert short.packets[-1].last  # it was not held up by the book
    assert max(length for _, length in reads) <= PIECE_CHARS
    assert reads[-1][0] == 11
    h.run()
    assert book.frames == 4 * len(h.streams[0].sequences)
    h.assert_balanced()


def test_what_was_paused_for_lack_of_text_or_slots_goes_on_as_if_it_had_not_been() -> None:
    """R63: a slot's positions are reserved at admission, so nothing is ever put out and computed again."""
    text = "ab cd ef gh ij"
    alone = Harness()
    _, solo = alone.submit(text, seed=5, max_frames=18)
    alone.run()
    h = Harness(streams=1)
    h.submit(text, seed=4, max_frames=6)
    stream, heard = h.submit("", seed=5, max_frames=18, ended=False)
    for piece in text:
        h.append(stream, piece)
        h.run()
    assert h.streams[1].sequences[0].state is SequenceState.WAITING_FOR_TEXT
    h.end(stream)
    h.run()
    assert h.codes(5) == alone.codes(5)
    np.testing.assert_allclose(heard.samples, solo.samples, atol=2e-5)
    h.assert_balanced()
