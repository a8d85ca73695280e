"""Where words stand in a stream: counted on over its sequences, and left out while that is not certain."""

from __future__ import annotations

from legato.engine.resolve import default_sampling
from legato.engine.sequence import Sequence, SequenceState
from legato.engine.words import spoken_words
from legato.flow import PromptSpec, SequenceId, SpokenWord, StreamId, TextLayout, WordSpan
from tests.engine.tiny import LetterTrack, tiny_config

FRAME = 1920


def sequence(number: int, text: str, words: tuple[WordSpan, ...], *, frames: int, ended: bool) -> Sequence:
    """A sequence as far as its words are concerned."""
    track = LetterTrack()
    track.words = words
    made = Sequence(
        SequenceId(number),
        StreamId(0),
        number,
        track,
        PromptSpec("auto", "", TextLayout.STREAMING),
        default_sampling(tiny_config()),
        seed=0,
        ends_with_track=True,
    )
    made.hear(text)
    made.frames = frames
    made.state = SequenceState.DRAINING if ended else SequenceState.RUNNING
    return made


FIRST = (WordSpan(0, 3, 0.0, 2.5), WordSpan(4, 7, 2.5, 6.0))
SECOND = (WordSpan(1, 5, 0.25, 3.0),)


def test_words_of_a_later_sequence_follow_the_text_and_the_frames_of_those_before_it() -> None:
    told = spoken_words(
        [sequence(0, "One two.", FIRST, frames=7, ended=True), sequence(1, " Four", SECOND, frames=1, ended=False)],
        FRAME,
    )
    assert told == [
        SpokenWord(0, 3, 0, 4800),
        SpokenWord(4, 7, 4800, 11520),
        SpokenWord(9, 13, round(7.25 * FRAME), 10 * FRAME),
    ]


def test_what_follows_a_sequence_that_still_grows_is_left_out_and_not_guessed() -> None:
    first = sequence(0, "One two.", FIRST, frames=4, ended=False)
    later = sequence(1, " Four", SECOND, frames=0, ended=False)
    assert [word.text_end for word in spoken_words([first, later], FRAME)] == [3, 7]
    first.state, first.frames = SequenceState.FINISHED, 9
    assert spoken_words([first, later], FRAME)[-1] == SpokenWord(9, 13, round(9.25 * FRAME), 12 * FRAME)


def test_a_front_end_that_knows_no_times_gives_no_words() -> None:
    assert spoken_words([sequence(0, "One.", (), frames=3, ended=True)], FRAME) == []
    assert spoken_words([], FRAME) == []
