"""Split streamed text into segments. Each segment becomes one sequence of a stream.

A stream owns one `Segmenter`, which holds the undecided text. Cuts depend only on the text, not on how it was split
into pieces.

A cut is decided at the first speakable character after it, from the preceding text. A character's segment is
therefore known when the character arrives. The exception is punctuation that may open the next word (a quote, a
bracket, a bullet, a sign): up to `LOOK_AHEAD_CHARS` of it is held back until a word or a space follows.
"""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass

from legato.errors import StateError
from legato.text.boundary import Strength, cut_strength
from legato.text.characters import extends, is_space, is_speakable, is_wide, joins_next

LOOK_AHEAD_CHARS = 8
"""Maximum number of further characters needed to assign a character to a segment (0 for letters)."""

_WIDE_WEIGHT = 3
_TOKEN_CHARS = 32
_GAP_CHARS = 32
_BULLETS = frozenset("-–—*•·#+>")
_OPENERS = frozenset("¿¡")


@dataclass(frozen=True, slots=True)
class SegmentPiece:
    """Text of segment number `segment` (from 0). `closes`: this is the last piece of the segment.

    A closing piece may be empty: the end of a sentence is often known only when the next one starts.
    """

    segment: int
    text: str
    closes: bool


@dataclass(frozen=True, slots=True)
class SegmentRule:
    """Segment length limits. Lengths are in Latin characters; a CJK character counts as three.

    A segment is closed by an empty line from `paragraph_chars` on and by a sentence end from `target_chars` on. Halfway
    between `target_chars` and `max_chars` a clause mark or line break also closes it, at three quarters a space, and at
    `max_chars` any grapheme boundary. Punctuation and spaces after the last word stay in the segment, so it may be
    slightly longer than `max_chars`.
    """

    paragraph_chars: int
    target_chars: int
    max_chars: int

    def __post_init__(self) -> None:
        if not 0 < self.paragraph_chars <= self.target_chars < self.max_chars or self.max_chars < _WIDE_WEIGHT:
            raise ValueError(f"segment lengths must rise: 0 < paragraph <= target < max (and max >= 3), not {self}")

    def min_strength(self, length: int) -> Strength | None:
        """Minimum cut strength that closes a segment of `length`; `None` if no cut is allowed yet."""
        if length < self.paragraph_chars:
            return None
        span = self.max_chars - self.target_chars
        quarters = 4 * (length - self.target_chars)  # position within the span, in quarters of it
        if quarters < 0:
            return Strength.PARAGRAPH
        if quarters < 2 * span:
            return Strength.SENTENCE
        return Strength.CLAUSE if quarters < 3 * span else Strength.SPACE


EMBEDDED_RULE = SegmentRule(paragraph_chars=12, target_chars=60, max_chars=300)
"""The embedded voice was trained on single sentences: a segment has one or two."""
OFFICIAL_RULE = SegmentRule(paragraph_chars=300, target_chars=600, max_chars=1200)
"""The official models handle long texts; a cut about every 40 s keeps the voice from drifting."""


def weighted_length(text: str) -> int:
    """Length of `text` as `SegmentRule` counts it."""
    return sum(_WIDE_WEIGHT if is_wide(char) else 1 for char in text)


class Segmenter:
    """Incremental segmenter for one stream. The concatenated pieces equal the input.

    Every segment contains a speakable character, except when the whole text has none: then there is one segment, closed
    by `end`.
    """

    def __init__(self, rule: SegmentRule) -> None:
        self._rule = rule
        self._segment = 0
        self._length = 0
        self._has_letters = False
        self._previous = ""
        self._token = ""  # last characters of the word before the gap
        self._gap = ""  # punctuation and spaces after it, already released; repeated spaces are omitted
        self._lead = ""  # punctuation that may open the next word, held back
        self._released: list[str] = []
        self._pieces: list[SegmentPiece] = []
        self._ended = False

    def append(self, text: str) -> list[SegmentPiece]:
        """Add text, split anywhere. Return the newly decided pieces, at most one per segment."""
        if self._ended:
            raise StateError("append() called after end() on a segmenter")
        for char in text:
            if extends(char) and self._previous:
                self._add_extender(char)
            elif is_speakable(char):
                self._add_letter(char)
            elif is_space(char):
                self._add_space(char)
            else:
                self._add_mark(char)
            self._previous = char
        return self._take_pieces(closes=False)

    def end(self) -> list[SegmentPiece]:
        """Finish the text and return the remaining pieces. The last piece closes the last segment."""
        if self._ended:
            raise StateError("end() called twice on a segmenter")
        self._ended = True
        self._flush_lead()
        return self._take_pieces(closes=True)

    def _take_pieces(self, *, closes: bool) -> list[SegmentPiece]:
        text = "".join(self._released)
        if text or closes:
            self._pieces.append(SegmentPiece(self._segment, text, closes))
        pieces, self._pieces, self._released = self._pieces, [], []
        return pieces

    def _release(self, text: str) -> None:
        self._released.append(text)
        self._length += weighted_length(text)

    def _extend_gap(self, marks: str) -> None:
        """Add to the gap between two words. A long gap keeps only its first and last characters."""
        self._gap += marks
        if len(self._gap) > 2 * _GAP_CHARS:
            self._gap = self._gap[:_GAP_CHARS] + self._gap[-_GAP_CHARS:]

    def _flush_lead(self) -> None:
        self._extend_gap(self._lead)
        self._release(self._lead)
        self._lead = ""

    def _add_extender(self, char: str) -> None:
        if self._lead:
            self._hold_back(char)
            return
        if not self._gap:
            self._token = (self._token + char)[-_TOKEN_CHARS:]
        self._release(char)

    def _hold_back(self, char: str) -> None:
        self._lead += char
        if len(self._lead) > LOOK_AHEAD_CHARS:
            self._flush_lead()

    def _add_space(self, char: str) -> None:
        if self._lead and char not in "\r\n\f\u2029" and self._lead_spans_blank():
            self._hold_back(char)
            return
        self._flush_lead()
        if char in "\r\n\f\u2029" or self._gap[-1:] != char:
            self._extend_gap(char)
        self._release(char)

    def _lead_spans_blank(self) -> bool:
        """True if the held-back punctuation can be followed by a space: « Bonjour, or a bullet at a line start."""
        if is_space(self._lead[-1]) or not (self._gap_ends_in_space() or not self._has_previous_word()):
            return False
        if all(_is_opening_mark(mark) for mark in self._lead):
            return True
        at_line_start = "\n" in self._gap or "\r" in self._gap or not self._has_previous_word()
        return at_line_start and all(mark in _BULLETS for mark in self._lead)

    def _has_previous_word(self) -> bool:
        return bool(self._token or self._has_letters or self._segment)

    def _gap_ends_in_space(self) -> bool:
        return bool(self._gap) and is_space(self._gap[-1])

    def _add_mark(self, char: str) -> None:
        if _is_symbol(char):  # belongs to the preceding text
            self._flush_lead()
            self._release(char)
        elif self._lead or self._gap_ends_in_space() or _is_opening_mark(char):
            self._hold_back(char)
        else:
            self._extend_gap(char)
            self._release(char)

    def _add_letter(self, char: str) -> None:
        has_gap = bool(self._gap or self._lead)
        strength = cut_strength(self._token, self._gap, self._lead, char) if has_gap else Strength.NONE
        if self._has_letters and self._closes_segment(strength, char):
            self._pieces.append(SegmentPiece(self._segment, "".join(self._released), True))
            self._released = []
            self._segment += 1
            self._length = 0
        self._update_token(char)
        self._release(self._lead + char)
        self._has_letters = True
        self._gap = self._lead = ""

    def _closes_segment(self, strength: Strength, char: str) -> bool:
        if self._length + weighted_length(self._lead + char) > self._rule.max_chars:
            return not joins_next(self._previous, char)
        needed = self._rule.min_strength(self._length)
        return needed is not None and strength >= needed

    def _update_token(self, char: str) -> None:
        changes_script = bool(self._token) and is_wide(self._token[-1]) != is_wide(char)
        if changes_script or any(is_space(mark) for mark in self._gap):
            self._token = self._lead + char
        else:
            self._token = (self._token + self._gap + self._lead + char)[-_TOKEN_CHARS:]


def _is_symbol(char: str) -> bool:
    """True for emoji, arrows, control and unassigned characters, but not for signs that belong to a word (°, №, ©)."""
    category = unicodedata.category(char)
    return category in {"Cs", "Cc", "Cn", "Co"} or (category == "So" and char > "\u2190")


def _is_opening_mark(char: str) -> bool:
    return char in _OPENERS or unicodedata.category(char) in {"Ps", "Pi"}
