"""The text that was heard: exact where word times are known, else an estimate that states its error."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from legato.flow import SpokenWord
from legato.session.heard import ERROR_CHARACTERS, Heard, HeardBy, heard

TEXT = "Hello there, world."
WORDS = (SpokenWord(0, 5, 100, 300), SpokenWord(6, 12, 300, 700), SpokenWord(13, 19, 900, 1300))


def at(played: int, *, words: tuple[SpokenWord, ...] = WORDS, whole: bool = True, text: str = TEXT) -> Heard:
    return heard(text, words, played_samples=played, made_samples=1500, made_whole=whole, calm_frame=80)


def test_a_word_is_heard_when_it_was_played_to_its_end() -> None:
    told = {played: at(played).characters for played in (0, 299, 300, 699, 700, 1299, 1300)}
    assert told == {0: 0, 299: 0, 300: 5, 699: 5, 700: 12, 1299: 12, 1300: 19}
    assert (at(300).by, at(300).error_characters) == (HeardBy.WORDS, 0)
    assert at(1500) == Heard(19, HeardBy.ALL, 0)
    assert at(1500, whole=False).by is HeardBy.WORDS


@settings(max_examples=60, deadline=None)
@given(text=st.text("abc 你好。,9", min_size=1, max_size=40), whole=st.booleans(), data=st.data())
def test_an_estimate_only_grows_and_never_cuts_a_word(text: str, whole: bool, data: st.DataObject) -> None:
    first = data.draw(st.integers(0, 1499))
    second = data.draw(st.integers(first, 1499))
    one, two = (at(played, words=(), whole=whole, text=text) for played in (first, second))
    assert 0 <= one.characters <= two.characters <= len(text)
    assert one.by is HeardBy.ESTIMATE
    cut = text[one.characters - 1 : one.characters + 1]
    assert not (one.characters and len(cut) == 2 and cut.isascii() and cut.isalnum())
    assert at(0, words=(), text=text).characters == 0


def test_an_estimate_states_its_error() -> None:
    assert at(700, words=()).error_characters == ERROR_CHARACTERS
    assert at(700, words=(), text="word " * 100).error_characters == 50
