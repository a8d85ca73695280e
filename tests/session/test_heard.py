"""How much of a text was heard: exact with word times, otherwise an estimate with an error bound."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from legato.session.heard import ERROR_CHARACTERS, HeardSource, HeardText, heard_text
from legato.types import SpokenWord

TEXT = "Hello there, world."
WORDS = (SpokenWord(0, 5, 100, 300), SpokenWord(6, 12, 300, 700), SpokenWord(13, 19, 900, 1300))


def heard_at(
    played: int, *, words: tuple[SpokenWord, ...] = WORDS, complete: bool = True, text: str = TEXT
) -> HeardText:
    return heard_text(
        text, words, played_samples=played, generated_samples=1500, fully_generated=complete, frame_samples=80
    )


def test_word_is_heard_when_played_to_its_end() -> None:
    characters = {played: heard_at(played).characters for played in (0, 299, 300, 699, 700, 1299, 1300)}
    assert characters == {0: 0, 299: 0, 300: 5, 699: 5, 700: 12, 1299: 12, 1300: 19}
    assert (heard_at(300).source, heard_at(300).error_characters) == (HeardSource.WORDS, 0)
    assert heard_at(1500) == HeardText(19, HeardSource.ALL, 0)
    assert heard_at(1500, complete=False).source is HeardSource.WORDS


@settings(max_examples=60, deadline=None)
@given(text=st.text("abc 你好。,9", min_size=1, max_size=40), complete=st.booleans(), data=st.data())
def test_estimate_is_monotonic_and_never_splits_a_word(text: str, complete: bool, data: st.DataObject) -> None:
    first = data.draw(st.integers(0, 1499))
    second = data.draw(st.integers(first, 1499))
    one, two = (heard_at(played, words=(), complete=complete, text=text) for played in (first, second))
    assert 0 <= one.characters <= two.characters <= len(text)
    assert one.source is HeardSource.ESTIMATE
    cut = text[one.characters - 1 : one.characters + 1]
    assert not (one.characters and len(cut) == 2 and cut.isascii() and cut.isalnum())
    assert heard_at(0, words=(), text=text).characters == 0


def test_estimate_has_error_bound() -> None:
    assert heard_at(700, words=()).error_characters == ERROR_CHARACTERS
    assert heard_at(700, words=(), text="word " * 100).error_characters == 50
