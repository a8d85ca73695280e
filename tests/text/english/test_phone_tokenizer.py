"""Aligned text tokenizer: independence of the split, incremental commits, word times, errors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from legato.config.model import DurationConfig, PhoneTextConfig
from legato.errors import StateError, UnspeakableTextError
from legato.text.english.phone_tokenizer import BLOCK_PHONES, PhoneTokenizer
from legato.text.english.phones import INVENTORY
from legato.types import IncrementalTokenizer

CONFIG = PhoneTextConfig("english_phones", INVENTORY, 4, 3, 6, DurationConfig(8, 3, 7))


class FakeDurations:
    """Durations that depend on every phone of the window, so that a token committed too early is wrong."""

    look_behind = 12
    look_ahead = 6

    def __init__(self) -> None:
        self.sizes: set[int] = set()

    def __call__(self, phones: Sequence[int]) -> list[float]:
        self.sizes.add(len(phones))
        width = self.look_behind + 1 + self.look_ahead
        windows = [phones[i : i + width] for i in range(len(phones) - width + 1)]
        return [0.3 + 4 * (1 + math.sin(sum((j + 1) * p for j, p in enumerate(w)))) for w in windows]


def tokenized(*pieces: str, speed: float = 1.0) -> PhoneTokenizer:
    tokenizer = PhoneTokenizer(CONFIG, FakeDurations(), speed=speed)
    for piece in pieces:
        tokenizer.append(piece)
    tokenizer.end()
    return tokenizer


TEXT = "Dr. Lee paid $12.50 for 3 apples, didn't she? Yes — at 9 a.m. on March 5, 2024!"


def test_is_a_text_track() -> None:
    tokenizer: IncrementalTokenizer = tokenized("Hello.")
    assert tokenizer.ended
    assert all(len(token) == 4 for token in tokenizer.tokens)


@settings(max_examples=60, deadline=None)
@given(st.text("aeT. ,?5$\n", max_size=30) | st.just(TEXT), st.lists(st.integers(0, 90), max_size=8))
def test_tokens_and_words_do_not_depend_on_split(text: str, cuts: list[int]) -> None:
    text = "Well " + text
    bounds = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    whole = tokenized(text)
    split = tokenized(*(text[a:b] for a, b in pairwise(bounds)))
    assert split.tokens == whole.tokens
    assert split.words == whole.words


def test_tokens_are_committed_incrementally_and_never_change() -> None:
    whole = tokenized(TEXT).tokens
    tokenizer = PhoneTokenizer(CONFIG, FakeDurations())
    grew = 0
    for character in TEXT:
        before = len(tokenizer.tokens)
        tokenizer.append(character)
        assert list(tokenizer.tokens) == list(whole[: len(tokenizer.tokens)])
        grew += len(tokenizer.tokens) > before
    assert grew > 5
    assert len(tokenizer.tokens) < len(whole)


def test_no_token_is_committed_before_look_ahead() -> None:
    tokenizer = PhoneTokenizer(CONFIG, FakeDurations())
    tokenizer.append("hello ")  # five phones, one short of the look-ahead
    assert list(tokenizer.tokens) == []
    tokenizer.append("world ")
    assert len(tokenizer.tokens) > 0


def test_duration_windows_have_constant_size() -> None:
    durations = FakeDurations()
    tokenizer = PhoneTokenizer(CONFIG, durations)
    for word in TEXT.split():
        tokenizer.append(word + " ")
    tokenizer.end()
    assert durations.sizes == {12 + BLOCK_PHONES + 6}


def test_track_has_silence_at_both_ends_and_all_phones() -> None:
    tokenizer = tokenized("Hi there.")
    quarters = [INVENTORY[p] for token in tokenizer.tokens for p in token]
    assert quarters[:8] == ["sil"] * 8
    assert quarters[8] == "h"
    assert quarters[-8:] == ["fin"] * 8
    assert "." in quarters
    heard = [q for i, q in enumerate(quarters) if i == 0 or quarters[i - 1] != q]
    assert heard == ["sil", "h", "ˈI", "ð", "ˈɛ", "ɹ", ".", "fin"]


def test_words_have_text_spans_and_ordered_times() -> None:
    tokenizer = tokenized(TEXT)
    assert [TEXT[w.text_start : w.text_end] for w in tokenizer.words][:5] == ["Dr", "Lee", "paid", "$12.50", "for"]
    times = [t for w in tokenizer.words for t in (w.start_frame, w.end_frame)]
    assert times == sorted(times)
    assert times[0] == 2.0
    assert times[-1] < len(tokenizer.tokens)
    assert tokenizer.words[-1].text_end == len(TEXT) - 1


def test_speed_shortens_the_track() -> None:
    assert len(tokenized(TEXT, speed=1.5).tokens) < len(tokenized(TEXT).tokens) < len(tokenized(TEXT, speed=0.7).tokens)


@pytest.mark.parametrize("text", ["", "  ", "\n", "…", "—", "()", "😀", "?!"])
def test_text_without_speakable_characters_raises(text: str) -> None:
    with pytest.raises(UnspeakableTextError, match="no letter or digit"):
        tokenized(text)


def test_text_in_other_scripts_raises_with_letters() -> None:
    with pytest.raises(UnspeakableTextError, match="你 好"):
        tokenized("你好！")
    assert len(tokenized("你好 hello").tokens) > 0


@pytest.mark.parametrize("text", ["9", "100", "8...", "HELLO", "sooooooooo", "a" * 3_000])
def test_short_uppercase_and_repeated_texts_have_bounded_length(text: str) -> None:
    assert 5 <= len(tokenized(text).tokens) < 5_000


def test_append_and_end_after_end_raise() -> None:
    tokenizer = tokenized("Hi.")
    with pytest.raises(StateError):
        tokenizer.append("more")
    with pytest.raises(StateError):
        tokenizer.end()


def test_missing_phone_in_checkpoint_raises() -> None:
    config = PhoneTextConfig("english_phones", INVENTORY[:-1], 4, 3, 6, DurationConfig(8, 3, 7))
    with pytest.raises(StateError, match="ˈʌ"):
        PhoneTokenizer(config, FakeDurations())
