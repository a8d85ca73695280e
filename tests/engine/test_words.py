"""Word times of a stream: continued over its sequences, and left out until they are known."""

from __future__ import annotations

from legato.engine.handle import spoken_words
from legato.engine.request import default_sampling
from legato.engine.sequence import Sequence, SequenceState
from legato.types import PromptSpec, SequenceId, SpokenWord, StreamId, TextLayout, WordSpan
from tests.engine.tiny import LetterTokenizer, tiny_config

FRAME = 1920


def sequence(number: int, text: str, words: tuple[WordSpan, ...], *, frames: int, ended: bool) -> Sequence:
    """A sequence with the given words."""
    tokenizer = LetterTokenizer()
    tokenizer.words = words
    made = Sequence(
        SequenceId(number),
        StreamId(0),
        number,
        tokenizer,
        PromptSpec("auto", "", TextLayout.STREAMING),
        default_sampling(tiny_config()),
        seed=0,
        ends_with_text=True,
    )
    made.append_text(text)
    made.frames = frames
    made.state = SequenceState.DRAINING if ended else SequenceState.RUNNING
    return made


FIRST = (WordSpan(0, 3, 0.0, 2.5), WordSpan(4, 7, 2.5, 6.0))
SECOND = (WordSpan(1, 5, 0.25, 3.0),)


def test_word_times_continue_over_sequences() -> None:
    words = spoken_words(
        [sequence(0, "One two.", FIRST, frames=7, ended=True), sequence(1, " Four", SECOND, frames=1, ended=False)],
        FRAME,
    )
    assert words == [
        SpokenWord(0, 3, 0, 4800),
        SpokenWord(4, 7, 4800, 11520),
        SpokenWord(9, 13, round(7.25 * FRAME), 10 * FRAME),
    ]


def test_words_after_an_unfinished_sequence_are_left_out() -> None:
    first = sequence(0, "One two.", FIRST, frames=4, ended=False)
    later = sequence(1, " Four", SECOND, frames=0, ended=False)
    assert [word.text_end for word in spoken_words([first, later], FRAME)] == [3, 7]
    first.state, first.frames = SequenceState.FINISHED, 9
    assert spoken_words([first, later], FRAME)[-1] == SpokenWord(9, 13, round(9.25 * FRAME), 12 * FRAME)


def test_front_end_without_word_times_gives_no_words() -> None:
    assert spoken_words([sequence(0, "One.", (), frames=3, ended=True)], FRAME) == []
    assert spoken_words([], FRAME) == []
