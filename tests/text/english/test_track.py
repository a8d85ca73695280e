"""Aligned text track: independence of the split, incremental commits, word times, errors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from legato.config.model import DurationConfig, PhoneTextConfig
from legato.errors import StateError, UnspeakableTextError
from legato.text.english.phones import INVENTORY
from legato.text.english.track import BLOCK_PHONES, EnglishTrack
from legato.types import TextTrack

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


def track_of(*pieces: str, speed: float = 1.0) -> EnglishTrack:
    track = EnglishTrack(CONFIG, FakeDurations(), speed=speed)
    for piece in pieces:
        track.append(piece)
    track.end()
    return track


TEXT = "Dr. Lee paid $12.50 for 3 apples, didn't she? Yes — at 9 a.m. on March 5, 2024!"


def test_is_a_text_track() -> None:
    track: TextTrack = track_of("Hello.")
    assert track.ended
    assert all(len(token) == 4 for token in track.tokens)


@settings(max_examples=60, deadline=None)
@given(st.text("aeT. ,?5$\n", max_size=30) | st.just(TEXT), st.lists(st.integers(0, 90), max_size=8))
def test_tokens_and_words_do_not_depend_on_split(text: str, cuts: list[int]) -> None:
    text = "Well " + text
    bounds = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    whole = track_of(text)
    split = track_of(*(text[a:b] for a, b in pairwise(bounds)))
    assert split.tokens == whole.tokens
    assert split.words == whole.words


def test_tokens_are_committed_incrementally_and_never_change() -> None:
    whole = track_of(TEXT).tokens
    track = EnglishTrack(CONFIG, FakeDurations())
    grew = 0
    for character in TEXT:
        before = len(track.tokens)
        track.append(character)
        assert list(track.tokens) == list(whole[: len(track.tokens)])
        grew += len(track.tokens) > before
    assert grew > 5
    assert len(track.tokens) < len(whole)


def test_no_token_is_committed_before_look_ahead() -> None:
    track = EnglishTrack(CONFIG, FakeDurations())
    track.append("hello ")  # five phones, one short of the look-ahead
    assert list(track.tokens) == []
    track.append("world ")
    assert len(track.tokens) > 0


def test_duration_windows_have_constant_size() -> None:
    durations = FakeDurations()
    track = EnglishTrack(CONFIG, durations)
    for word in TEXT.split():
        track.append(word + " ")
    track.end()
    assert durations.sizes == {12 + BLOCK_PHONES + 6}


def test_track_has_silence_at_both_ends_and_all_phones() -> None:
    track = track_of("Hi there.")
    quarters = [INVENTORY[p] for token in track.tokens for p in token]
    assert quarters[:8] == ["sil"] * 8
    assert quarters[8] == "h"
    assert quarters[-8:] == ["fin"] * 8
    assert "." in quarters
    heard = [q for i, q in enumerate(quarters) if i == 0 or quarters[i - 1] != q]
    assert heard == ["sil", "h", "ˈI", "ð", "ˈɛ", "ɹ", ".", "fin"]


def test_words_have_text_spans_and_ordered_times() -> None:
    track = track_of(TEXT)
    assert [TEXT[w.text_start : w.text_end] for w in track.words][:5] == ["Dr", "Lee", "paid", "$12.50", "for"]
    times = [t for w in track.words for t in (w.start_frame, w.end_frame)]
    assert times == sorted(times)
    assert times[0] == 2.0
    assert times[-1] < len(track.tokens)
    assert track.words[-1].text_end == len(TEXT) - 1


def test_speed_shortens_the_track() -> None:
    assert len(track_of(TEXT, speed=1.5).tokens) < len(track_of(TEXT).tokens) < len(track_of(TEXT, speed=0.7).tokens)


@pytest.mark.parametrize("text", ["", "  ", "\n", "…", "—", "()", "😀", "?!"])
def test_text_without_speakable_characters_raises(text: str) -> None:
    with pytest.raises(UnspeakableTextError, match="no letter or digit"):
        track_of(text)


def test_text_in_other_scripts_raises_with_letters() -> None:
    with pytest.raises(UnspeakableTextError, match="你 好"):
        track_of("你好！")
    assert len(track_of("你好 hello").tokens) > 0


@pytest.mark.parametrize("text", ["9", "100", "8...", "HELLO", "sooooooooo", "a" * 3_000])
def test_short_uppercase_and_repeated_texts_have_bounded_length(text: str) -> None:
    assert 5 <= len(track_of(text).tokens) < 5_000


def test_append_and_end_after_end_raise() -> None:
    track = track_of("Hi.")
    with pytest.raises(StateError):
        track.append("more")
    with pytest.raises(StateError):
        track.end()


def test_missing_phone_in_checkpoint_raises() -> None:
    config = PhoneTextConfig("english_phones", INVENTORY[:-1], 4, 3, 6, DurationConfig(8, 3, 7))
    with pytest.raises(StateError, match="ˈʌ"):
        EnglishTrack(config, FakeDurations())
