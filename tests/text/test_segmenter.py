"""Segmenter: pieces add up to the text, cuts do not depend on how it was split, and no expression is cut."""

from __future__ import annotations

import itertools
import unicodedata
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from legato.errors import StateError
from legato.text.characters import is_speakable
from legato.text.segmenter import (
    EMBEDDED_RULE,
    LOOK_AHEAD_CHARS,
    OFFICIAL_RULE,
    Segmenter,
    SegmentPiece,
    SegmentRule,
    weighted_length,
)

EAGER = SegmentRule(paragraph_chars=1, target_chars=1, max_chars=400)
"""Cuts at every sentence end."""
TIGHT = SegmentRule(paragraph_chars=4, target_chars=8, max_chars=24)
PRESETS = (EMBEDDED_RULE, OFFICIAL_RULE, EAGER, TIGHT)


def feed(rule: SegmentRule, pieces: Sequence[str]) -> list[SegmentPiece]:
    segmenter = Segmenter(rule)
    out = [piece for text in pieces for piece in segmenter.append(text)]
    return out + segmenter.end()


def joined(pieces: Sequence[SegmentPiece]) -> list[str]:
    texts = [""] * (pieces[-1].segment + 1)
    for piece in pieces:
        texts[piece.segment] += piece.text
    return texts


def segments(text: str, rule: SegmentRule = EAGER) -> list[str]:
    whole = joined(feed(rule, [text]))
    assert whole == joined(feed(rule, list(text))), "cuts differ when fed one character at a time"
    return whole


@pytest.mark.parametrize(
    "text",
    [
        # CASES R53
        "98.6°F",
        "3.14",
        "v1.2.0",
        "Dr. Lee",
        "9 a.m.",
        "22,1 °C",
        # similar expressions
        "1,234.56 and 1.234,56",
        "10:30",
        "e.g. apples, i.e. fruit",
        "Mr. J. R. R. Tolkien vs. Prof. Smith Jr. etc. and so on",
        "the U.S. Army",
        "Ph.D. Smith",
        "No. 5 on p. 12 of vol. 3",
        "at example.com/a.b?c=d.e!f and bob.o'neil@mail.example.org now",
        "wait... what",
        "Wait…what?!no",
        '"Really?" he asked',
        "'No!' she said",
        "am 3. Mai kam z.B. Dr. Müller",
        "т.е. сегодня",
        "１．５倍",
        "价格是3.5元",
        "「えっ！」と言った",
        "Node.js的",
        ".5 of .NET",
        "1. First",
    ],
)
@pytest.mark.parametrize("around", ["{}", "So {}", "{} it is"])
def test_no_cut_inside_expression(text: str, around: str) -> None:
    assert len(segments(around.format(text))) == 1


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("你好！再见。", ["你好！", "再见。"]),
        ("One. Two! Three? Four", ["One. ", "Two! ", "Three? ", "Four"]),
        ("It is 98.6°F. I am ill.", ["It is 98.6°F. ", "I am ill."]),
        ("Use v1.2.0. Then stop.", ["Use v1.2.0. ", "Then stop."]),
        ("See example.com. Then mail a.b@c.de. Go.", ["See example.com. ", "Then mail a.b@c.de. ", "Go."]),
        ('He left. "Why?" she asked. (No idea.) Well.', ["He left. ", '"Why?" she asked. ', "(No idea.) ", "Well."]),
        ("He said no. Then he sat. Then left.", ["He said no. ", "Then he sat. ", "Then left."]),
        ("« Bonjour ! » Il part. « Non. »", ["« Bonjour ! » ", "Il part. ", "« Non. »"]),
        ("„Hallo.“ Er ging.", ["„Hallo.“ ", "Er ging."]),
        ("¿Qué? ¡Sí! No.", ["¿Qué? ", "¡Sí! ", "No."]),
        ("“好吧。”“不！”他走了。", ["“好吧。”", "“不！”他走了。"]),
        ("你好!再见?好.", ["你好!", "再见?", "好."]),
        ("はい。いいえ｡ﾊｲ", ["はい。", "いいえ｡", "ﾊｲ"]),
        ("他说……好。对", ["他说……好。", "对"]),
        ("यह है। वह है।", ["यह है। ", "वह है।"]),
        ("Wait... What? So… Yes", ["Wait... ", "What? ", "So… ", "Yes"]),
        ("Title\n\nBody of it", ["Title\n\n", "Body of it"]),
        ("Title\r\n \r\nBody", ["Title\r\n \r\n", "Body"]),
        ("Costs more. $5 or -555. .5 is less", ["Costs more. ", "$5 or -555. ", ".5 is less"]),
        ("Done.\n- next\n- last", ["Done.\n- next\n- last"]),
        ("Done.\n- Next", ["Done.\n", "- Next"]),
    ],
)
def test_cuts_at_sentence_ends(text: str, expected: list[str]) -> None:
    assert segments(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Hello! 😀 World", ["Hello! 😀 ", "World"]),
        ("Hello! 👩\u200d💻 ☀️ (…) -- World", ["Hello! 👩\u200d💻 ☀️ (…) -- ", "World"]),
        ("😀 😀\n\n😀 Hi. 😀", ["😀 😀\n\n😀 Hi. 😀"]),
        ("Hi.   \n\n \n😀", ["Hi.   \n\n \n😀"]),
        ("() … — Hi", ["() … — Hi"]),
    ],
)
def test_unspeakable_text_is_merged_into_segments(text: str, expected: list[str]) -> None:
    assert segments(text) == expected


@pytest.mark.parametrize("text", ["", "  ", "\n", "…", "—", "()", "😀", "8...", "9", "100"])
def test_every_text_has_one_closed_segment(text: str) -> None:
    assert feed(EAGER, [text])[-1].closes
    assert segments(text) == [text]


def test_long_sentences_are_cut_at_clauses_spaces_or_graphemes() -> None:
    rule = SegmentRule(paragraph_chars=10, target_chars=20, max_chars=60)
    clauses = segments("a word or two and some, " * 8, rule)
    assert len(clauses) > 1
    assert all(text.endswith(", ") for text in clauses)
    words = segments("word " * 40, rule)
    assert len(words) > 1
    assert all(text.endswith(" ") and 50 <= weighted_length(text) <= 60 for text in words[:-1])
    assert [len(text) for text in segments("w" * 150, rule)] == [60, 60, 30]
    assert [len(text) for text in segments("好" * 50, rule)] == [20, 20, 10]
    assert segments("你好，" * 20, rule)[0].endswith("，")


def test_graphemes_and_surrogates_are_not_split() -> None:
    accents = segments("e\u0301" * 40, TIGHT)
    assert len(accents) > 1
    assert all(not unicodedata.combining(text[0]) for text in accents)
    jamo = "\u1112\u1161\u11ab" * 12
    assert all(text.startswith("\u1112") for text in segments(jamo, TIGHT))
    conjuncts = segments("\u0915\u094d\u0937" * 20, TIGHT)
    assert all(text.startswith("\u0915") for text in conjuncts)
    assert all(not "\udc00" <= text[0] <= "\udfff" for text in segments("a\ud83d\ude00" * 30, TIGHT))


def test_text_is_released_immediately() -> None:
    segmenter = Segmenter(EAGER)
    assert segmenter.append("Hello. ") == [SegmentPiece(0, "Hello. ", False)]
    assert segmenter.append('"') == []  # may open the next sentence
    assert segmenter.append("W") == [SegmentPiece(0, "", True), SegmentPiece(1, '"W', False)]
    assert segmenter.append("") == []
    assert segmenter.end() == [SegmentPiece(1, "", True)]


def test_segmenter_rejects_calls_after_end() -> None:
    segmenter = Segmenter(EAGER)
    segmenter.end()
    with pytest.raises(StateError):
        segmenter.append("a")
    with pytest.raises(StateError):
        segmenter.end()


def test_invalid_segment_rule_raises() -> None:
    for lengths in ((0, 1, 5), (5, 4, 9), (1, 9, 9), (1, 1, 2)):
        with pytest.raises(ValueError, match="required: 0 < paragraph_chars"):
            SegmentRule(*lengths)


ALPHABET = st.sampled_from(
    [
        *"aBZé19好ありㅎ",
        "Dr",
        "e.g",
        *".,!?;:…。！？，、．'\"()“”«»「」-—*#$°@/",
        " ",
        " ",
        "\n",
        "\r\n",
        "\u00a0",
        "😀",
        "\u0301",
        "\u200d",
    ]
)
TEXTS = st.lists(ALPHABET, max_size=80).map("".join) | st.text(max_size=60)


@settings(max_examples=250, deadline=None)
@given(text=TEXTS, cuts=st.lists(st.integers(0, 80), max_size=12), rule=st.sampled_from(PRESETS))
def test_segments_do_not_depend_on_split(text: str, cuts: list[int], rule: SegmentRule) -> None:
    edges = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    pieces = feed(rule, [text[a:b] for a, b in itertools.pairwise(edges)])
    texts = joined(pieces)
    assert "".join(piece.text for piece in pieces) == text
    assert texts == joined(feed(rule, [text]))
    assert [piece.segment for piece in pieces] == sorted(piece.segment for piece in pieces)
    assert [piece.segment for piece in pieces if piece.closes] == list(range(len(texts)))
    if len(texts) > 1:
        assert all(any(is_speakable(char) for char in segment) for segment in texts)


@settings(max_examples=150, deadline=None)
@given(text=TEXTS, rule=st.sampled_from(PRESETS))
def test_segment_length_and_look_ahead_are_bounded(text: str, rule: SegmentRule) -> None:
    for segment in joined(feed(rule, [text])):
        last = max((i for i, char in enumerate(segment) if is_speakable(char)), default=0)
        extenders = sum(unicodedata.category(char)[0] == "M" or char == "\u200d" for char in segment)
        assert weighted_length(segment[:last]) - 4 * extenders <= rule.max_chars + LOOK_AHEAD_CHARS
    segmenter, released = Segmenter(rule), 0
    for count, char in enumerate(text, start=1):
        released += sum(len(piece.text) for piece in segmenter.append(char))
        assert count - released <= LOOK_AHEAD_CHARS


@pytest.mark.parametrize("mark", [".", " ", "\n", "—", "(", "\u0301", "😀", "。", "a"])
def test_segmenter_state_is_bounded_for_repeated_characters(mark: str) -> None:
    """The state is bounded, so hostile text takes linear time."""
    segmenter = Segmenter(EAGER)
    segmenter.append("Hi" + mark * 20_000)
    state = [value for value in vars(segmenter).values() if isinstance(value, str)]
    assert all(len(value) <= 100 for value in state)
    assert segmenter.append("Now.")
