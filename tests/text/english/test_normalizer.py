"""English text normalization: spoken words, source spans, and independence of how the text is split."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from legato.text.english.normalizer import EnglishNormalizer, Item, NormalizedWord, Pause


def items_of(*pieces: str) -> list[Item]:
    normalizer = EnglishNormalizer()
    items = [item for piece in pieces for item in normalizer.push(piece)]
    return items + normalizer.finish()


def spoken(text: str) -> str:
    return " ".join(item.text if isinstance(item, NormalizedWord) else item.mark for item in items_of(text))


READINGS = {
    # R53: numbers, versions, names and times stay whole
    "98.6°F": "ninety eight point six degrees Fahrenheit .",
    "3.14": "three point one four .",
    "v1.2.0": "version one point two point zero .",
    "Dr. Lee": "doctor Lee .",
    "9 a.m.": "nine am. .",
    "22,1 °C": "twenty two point one degrees Celsius .",
    # R54: digits are spoken
    "9": "nine .",
    "100": "one hundred .",
    "8...": "eight .",
    # dates, times, money
    "on March 5, 2024.": "on march fifth , twenty twenty four .",
    "born 12 May 1987 in the 1990s": "born the twelfth of May nineteen eighty seven in the nineteen nineties .",
    "2024-03-05 or 3/5/2024": "march fifth , twenty twenty four or march fifth , twenty twenty four .",
    "at 3:30 p.m. on": "at three thirty pm. on .",
    "10:00 10:05am 7:00 a.m.": "ten o'clock ten oh five am. seven am. .",
    "Dr. Lee left at 9 a.m. Then she": "doctor Lee left at nine am. . Then she .",
    "$12.50, $1.01 and $0.99": "twelve dollars and fifty cents , one dollar and one cent and ninety nine cents .",
    "$5 million or $3.5M, -$2, £3.20": "five million dollars or three point five million dollars , minus two dollars , "
    "three pounds and twenty pence .",
    # numbers
    "1,280 meters": "one thousand two hundred eighty meters .",
    "007 and 1,000,000": "zero zero seven and one million .",
    "45% of 1/2": "forty five percent of one half .",
    "2nd, 21st": "second , twenty first .",
    "5-10 years, 1990-1995": "five to ten years , nineteen ninety to nineteen ninety five .",
    "a 10-year-old": "a ten year-old .",
    "15kg, 10 km/h, 1 lb, 5 ft": "fifteen kilograms , ten kilometers per hour , one pound , five feet .",
    "555-0142": "five five five , zero one four two .",
    "No. 5. No. I": "number five . No . I .",
    "World War II and Henry VIII": "World War two and Henry the eighth .",
    # letters, addresses, symbols
    "J. R. R. Tolkien": "J. R. R. Tolkien .",
    "the U.S. Army": "the US. Army .",
    "maria@example.com.": "maria at example dot com .",
    "https://www.example.com/a": "www. dot example dot com slash a. .",
    "COVID-19, B2B, H2O": "COVID nineteen , B. two B. , H. two O. .",
    "2+2=4": "two plus two equals four .",
    "Plan A is a plan. A plan": "Plan A. is a plan . A plan .",
    # pauses
    "wait... what?! No—really (yes): ok; fine": "wait . what ? No , really , yes , ok , fine .",
    "e.g. this, etc. And so": "for example this , et cetera . And so .",
    # other letters
    "naïve café Łódź": "naive cafe Lodz .",
    "Привет, hello 😀 there": "hello there .",
    "a\x00b\x07c": "abc .",
}


@pytest.mark.parametrize("text", READINGS)
def test_reading(text: str) -> None:
    assert spoken(text) == READINGS[text]


MARKUP = {
    "**Bold** _it_ `code` done": "Bold it code done .",
    "[link](http://x.y/z?q=1) done": "link done .",
    '<break time="1s"/>Hello <b>world</b>': "Hello world .",
    "an <unclosed tag": "an unclosed tag .",
    "a < b & c": "a less than b and c .",
    "# Heading\n\n- item one\n- item two\n\nEnd": "Heading . item one . item two . End .",
}


@pytest.mark.parametrize("text", MARKUP)
def test_markup_is_removed(text: str) -> None:
    assert spoken(text) == MARKUP[text]


@pytest.mark.parametrize("text", ["", "  ", "\n", "…", "—", "()", "😀", "?!", "***", "你好", "Привет"])
def test_unspeakable_text_gives_no_items(text: str) -> None:
    assert items_of(text) == []


def test_unspeakable_letters_are_reported() -> None:
    normalizer = EnglishNormalizer()
    normalizer.push("你好 hello мир")
    normalizer.finish()
    assert normalizer.unspeakable == ("你", "好", "м", "и", "р")


def test_spans_point_to_source_text() -> None:
    text = "  **Dr.** Lee paid $12.50 — twice."
    spans = {item.text: text[item.start : item.end] for item in items_of(text) if isinstance(item, NormalizedWord)}
    assert spans["doctor"] == "Dr"
    assert spans["twelve"] == spans["cents"] == "$12.50"
    assert spans["twice"] == "twice"


def test_only_context_dependent_pieces_wait_for_look_ahead() -> None:
    normalizer = EnglishNormalizer()
    assert normalizer.push("hello ") == [NormalizedWord("hello", 0, 5)]
    assert normalizer.push("5 ") == []
    assert normalizer.push("km ") == []
    assert [item.text for item in normalizer.push("away ") if isinstance(item, NormalizedWord)] == [
        "five",
        "kilometers",
        "away",
    ]


def test_hostile_texts_have_bounded_words() -> None:
    for text in ("a" * 10_000, "<a" * 5_000, "1" * 10_000, "a.b" * 3_000, "](" * 5_000, "$" * 10_000):
        words = [item for item in items_of(text) if isinstance(item, NormalizedWord)]
        assert all(len(word.text) <= 130 for word in words)


FRAGMENTS = st.sampled_from(
    [*READINGS, *MARKUP, " ", "\n\n", "**", "$", "5", "a.m.", "March", "(", ")", "<", ">", "Dr.", ".", "?", "word", "-"]
)
TEXTS = st.lists(FRAGMENTS | st.text(max_size=6), max_size=8).map("".join)


@settings(max_examples=150, deadline=None)
@given(TEXTS, st.lists(st.integers(0, 200), max_size=6))
def test_items_do_not_depend_on_split(text: str, cuts: list[int]) -> None:
    bounds = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    pieces = [text[a:b] for a, b in pairwise(bounds)]
    assert items_of(*pieces) == items_of(text)
    assert items_of(*text) == items_of(text)


@settings(max_examples=100, deadline=None)
@given(TEXTS)
def test_spans_are_valid_and_ordered(text: str) -> None:
    words = [item for item in items_of(text) if isinstance(item, NormalizedWord)]
    starts = [word.start for word in words]
    assert starts == sorted(starts)
    assert all(0 <= word.start < word.end <= len(text) for word in words)


@given(TEXTS)
@settings(max_examples=100, deadline=None)
def test_pauses_are_never_leading_or_adjacent(text: str) -> None:
    items = items_of(text)
    if items:
        assert isinstance(items[0], NormalizedWord)
        assert isinstance(items[-1], Pause)
        assert items[-1].mark in ".?!"
    pairs = pairwise(items)
    assert not any(isinstance(a, Pause) and isinstance(b, Pause) for a, b in pairs)
