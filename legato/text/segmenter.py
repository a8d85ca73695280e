"""Split streamed text into segments. Each segment becomes one sequence of a stream.

Each stream has its own `Segmenter`, which holds the text that is not yet assigned to a segment. Cuts depend only on the
text, not on how it was split into pieces.

Whether to cut before a word is decided when its first character arrives, using only the text before it. A character's
segment is therefore known when the character arrives. The exception is punctuation that may open the next word (a
quote, a bracket, a bullet, a sign): up to `LOOK_AHEAD_CHARS` of it is held back until a word or a space follows.
"""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass

from legato.errors import StateError
from legato.text.boundary import Strength, cut_strength
from legato.text.characters import extends, is_space, is_speakable, is_wide, joins_next

LOOK_AHEAD_CHARS = 8
"""Maximum number of later characters needed to assign a character to a segment (0 for letters)."""

_WIDE_WEIGHT = 3
_LAST_WORD_CHARS = 32
_GAP_CHARS = 32
_BULLETS = frozenset("-–—*•·#+>")
_OPENERS = frozenset("¿¡")


@dataclass(frozen=True, slots=True)
class SegmentPiece:
    """Text of segment number `segment` (from 0). `closes`: this is the last piece of the segment.

    A closing piece may be empty, because the end of a sentence is often known only when the next one starts.
    """

    segment: int
    text: str
    closes: bool


@dataclass(frozen=True, slots=True)
class SegmentRule:
    """Segment length limits. Lengths are in Latin characters; a CJK character counts as three.

    The longer a segment is, the weaker the cut that closes it:

        length >= paragraph_chars              an empty line
        length >= target_chars                 also a sentence end
        1/2 of the way to max_chars            also a clause mark or line break
        3/4 of the way to max_chars            also a space
        length >= max_chars                    any grapheme boundary

    Punctuation and spaces after the last word stay in the segment, so it may be slightly longer than `max_chars`.
    """

    paragraph_chars: int
    target_chars: int
    max_chars: int

    def __post_init__(self) -> None:
        if not 0 < self.paragraph_chars <= self.target_chars < self.max_chars or self.max_chars < _WIDE_WEIGHT:
            raise ValueError(
                f"required: 0 < paragraph_chars <= target_chars < max_chars and max_chars >= 3; got {self}"
            )

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
"""The embedded voice was trained on single sentences, so a segment has one or two."""
OFFICIAL_RULE = SegmentRule(paragraph_chars=300, target_chars=600, max_chars=1200)
"""The official models support long texts. A cut about every 40 s of speech prevents drift of the voice."""


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
        self._has_speakable = False
        self._previous = ""
        self._last_word = ""  # last characters of the word before the gap
        self._gap = ""  # punctuation and spaces after it, already released; repeated spaces are omitted
        self._lead = ""  # punctuation that may open the next word, held back
        self._released: list[str] = []
        self._pieces: list[SegmentPiece] = []
        self._ended = False

    def append(self, text: str) -> list[SegmentPiece]:
        """Add text, split anywhere. Returns the text that is now assigned, at most one piece per segment."""
        if self._ended:
            raise StateError("append() called after end() on a segmenter")
        for char in text:
            if extends(char) and self._previous:
                self._add_extender(char)
            elif is_speakable(char):
                self._add_speakable(char)
            elif is_space(char):
                self._add_space(char)
            else:
                self._add_mark(char)
            self._previous = char
        return self._take_pieces(closes=False)

    def end(self) -> list[SegmentPiece]:
        """End the text and return the remaining pieces. The last piece closes the last segment."""
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
            self._last_word = (self._last_word + char)[-_LAST_WORD_CHARS:]
        self._release(char)

    def _hold_back(self, char: str) -> None:
        self._lead += char
        if len(self._lead) > LOOK_AHEAD_CHARS:
            self._flush_lead()

    def _add_space(self, char: str) -> None:
        if self._lead and char not in "\r\n\f\u2029" and self._lead_may_precede_space():
            self._hold_back(char)
            return
        self._flush_lead()
        if char in "\r\n\f\u2029" or self._gap[-1:] != char:
            self._extend_gap(char)
        self._release(char)

    def _lead_may_precede_space(self) -> bool:
        """True if the held-back punctuation may be separated from the next word by a space, and still belong to it.

        Examples: the quote in « Bonjour, and a bullet at the start of a line.
        """
        if is_space(self._lead[-1]) or not (self._gap_ends_in_space() or not self._has_previous_word()):
            return False
        if all(_is_opening_mark(mark) for mark in self._lead):
            return True
        at_line_start = "\n" in self._gap or "\r" in self._gap or not self._has_previous_word()
        return at_line_start and all(mark in _BULLETS for mark in self._lead)

    def _has_previous_word(self) -> bool:
        return bool(self._last_word or self._has_speakable or self._segment)

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

    def _add_speakable(self, char: str) -> None:
        has_gap = bool(self._gap or self._lead)
        strength = cut_strength(self._last_word, self._gap, self._lead, char) if has_gap else Strength.NONE
        if self._has_speakable and self._closes_segment(strength, char):
            self._pieces.append(SegmentPiece(self._segment, "".join(self._released), True))
            self._released = []
            self._segment += 1
            self._length = 0
        self._update_last_word(char)
        self._release(self._lead + char)
        self._has_speakable = True
        self._gap = self._lead = ""

    def _closes_segment(self, strength: Strength, char: str) -> bool:
        if self._length + weighted_length(self._lead + char) > self._rule.max_chars:
            return not joins_next(self._previous, char)
        needed = self._rule.min_strength(self._length)
        return needed is not None and strength >= needed

    def _update_last_word(self, char: str) -> None:
        changes_script = bool(self._last_word) and is_wide(self._last_word[-1]) != is_wide(char)
        if changes_script or any(is_space(mark) for mark in self._gap):
            self._last_word = self._lead + char
        else:
            self._last_word = (self._last_word + self._gap + self._lead + char)[-_LAST_WORD_CHARS:]


def _is_symbol(char: str) -> bool:
    """True for emoji, arrows, control and unassigned characters, but not for signs that belong to a word (°, №, ©)."""
    category = unicodedata.category(char)
    return category in {"Cs", "Cc", "Cn", "Co"} or (category == "So" and char > "\u2190")


def _is_opening_mark(char: str) -> bool:
    return char in _OPENERS or unicodedata.category(char) in {"Ps", "Pi"}
