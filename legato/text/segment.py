"""Long text cut into segments, one for each sequence of a stream, while it arrives.

Owns the text between two cuts for as long as a `Segmenter` lives, one for each stream. The cuts depend on the text
alone, never on how it was split into pieces. Knows no model, no tokens, no time.

A cut is decided at the first character that can be spoken after it, from what came before it alone: which segment a
character belongs to is known when it arrives. Only marks that may open the next word (a quote, a bracket, a bullet,
a sign) are held back until that word or a blank shows where they belong, at most `LOOK_AHEAD_CHARS` of them.
"""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass

from legato.errors import StateError
from legato.text.boundary import Strength, boundary
from legato.text.characters import extends, is_space, is_speakable, is_wide, joins_next

LOOK_AHEAD_CHARS = 8
"""A character's segment is known once this many further characters (or the end) have come; for letters, at once."""

_WIDE_WEIGHT = 3
_TOKEN_CHARS = 32
_GAP_CHARS = 32
_BULLETS = frozenset("-–—*•·#+>")
_OPENERS = frozenset("¿¡")


@dataclass(frozen=True, slots=True)
class SegmentPiece:
    """Text that surely belongs to segment number `segment` (from 0). `closes`: that segment has no more text.

    A closing piece may be empty: that a sentence was over is often known only when the next one starts.
    """

    segment: int
    text: str
    closes: bool


@dataclass(frozen=True, slots=True)
class SegmentRule:
    """How long a segment gets. Lengths are in characters of an alphabet; a CJK character counts as three.

    From `paragraph_chars` on an empty line closes it, from `target_chars` on the end of a sentence too; from half of
    the way from there to `max_chars` a clause mark or a line's end, from three quarters a blank. At `max_chars` it is
    cut between any two graphemes. Marks and blanks after the last word never open a segment, so they may exceed it.
    """

    paragraph_chars: int
    target_chars: int
    max_chars: int

    def __post_init__(self) -> None:
        if not 0 < self.paragraph_chars <= self.target_chars < self.max_chars or self.max_chars < _WIDE_WEIGHT:
            raise ValueError(f"segment lengths must rise: 0 < paragraph <= target < max (and max >= 3), not {self}")

    def needs(self, length: int) -> Strength | None:
        """The weakest cut that closes a segment of `length`; None while no cut may."""
        if length < self.paragraph_chars:
            return None
        way = 4 * (length - self.target_chars)
        span = self.max_chars - self.target_chars
        if way < 0:
            return Strength.PARAGRAPH
        if way < 2 * span:
            return Strength.SENTENCE
        return Strength.CLAUSE if way < 3 * span else Strength.BLANK


EMBEDDED_RULE = SegmentRule(paragraph_chars=12, target_chars=60, max_chars=300)
"""The embedded voice was trained on single sentences: one or two a segment."""
OFFICIAL_RULE = SegmentRule(paragraph_chars=300, target_chars=600, max_chars=1200)
"""The official models speak long texts in one breath; a cut about every 40 s keeps the voice from drifting."""


def length_of(text: str) -> int:
    """Length of `text` as `SegmentRule` counts it."""
    return sum(_WIDE_WEIGHT if is_wide(char) else 1 for char in text)


class Segmenter:
    """One stream's text, cut as it arrives. Joined, the texts of all pieces are the text that was given.

    A segment has something to speak, unless the whole text has not: then there is one segment, closed by `end`.
    """

    def __init__(self, rule: SegmentRule) -> None:
        self._rule = rule
        self._segment = 0
        self._length = 0
        self._spoken = False
        self._previous = ""
        self._token = ""  # the word before the gap, its last characters
        self._gap = ""  # marks and blanks after it, released already; repeats of a blank are left out
        self._lead = ""  # marks that may open the next word, held back
        self._released: list[str] = []
        self._pieces: list[SegmentPiece] = []
        self._ended = False

    def append(self, text: str) -> list[SegmentPiece]:
        """Take the next characters, split anywhere; return what is certain now. At most one piece a segment."""
        if self._ended:
            raise StateError("text was appended to a segmenter that had ended")
        for char in text:
            if extends(char) and self._previous:
                self._extend(char)
            elif is_speakable(char):
                self._speak(char)
            elif is_space(char):
                self._blank(char)
            else:
                self._mark(char)
            self._previous = char
        return self._take(closes=False)

    def end(self) -> list[SegmentPiece]:
        """No more text: return the rest; its last piece closes the last segment."""
        if self._ended:
            raise StateError("a segmenter was ended twice")
        self._ended = True
        self._flush_lead()
        return self._take(closes=True)

    def _take(self, *, closes: bool) -> list[SegmentPiece]:
        text = "".join(self._released)
        if text or closes:
            self._pieces.append(SegmentPiece(self._segment, text, closes))
        pieces, self._pieces, self._released = self._pieces, [], []
        return pieces

    def _release(self, text: str) -> None:
        self._released.append(text)
        self._length += length_of(text)

    def _widen_gap(self, marks: str) -> None:
        """Remember what stands between the words: the first marks, which touch the last word, and the latest."""
        self._gap += marks
        if len(self._gap) > 2 * _GAP_CHARS:
            self._gap = self._gap[:_GAP_CHARS] + self._gap[-_GAP_CHARS:]

    def _flush_lead(self) -> None:
        self._widen_gap(self._lead)
        self._release(self._lead)
        self._lead = ""

    def _extend(self, char: str) -> None:
        if self._lead:
            self._hold(char)
            return
        if not self._gap:
            self._token = (self._token + char)[-_TOKEN_CHARS:]
        self._release(char)

    def _hold(self, char: str) -> None:
        self._lead += char
        if len(self._lead) > LOOK_AHEAD_CHARS:
            self._flush_lead()

    def _blank(self, char: str) -> None:
        if self._lead and char not in "\r\n\f\u2029" and self._lead_spans_blank():
            self._hold(char)
            return
        self._flush_lead()
        if char in "\r\n\f\u2029" or self._gap[-1:] != char:
            self._widen_gap(char)
        self._release(char)

    def _lead_spans_blank(self) -> bool:
        """True for marks that open what follows a blank: « Bonjour, and bullets at the start of a line."""
        if is_space(self._lead[-1]) or not (self._gap_ends_in_space() or not self._previous_word()):
            return False
        if all(_opens(mark) for mark in self._lead):
            return True
        at_line_start = "\n" in self._gap or "\r" in self._gap or not self._previous_word()
        return at_line_start and all(mark in _BULLETS for mark in self._lead)

    def _previous_word(self) -> bool:
        return bool(self._token or self._spoken or self._segment)

    def _gap_ends_in_space(self) -> bool:
        return bool(self._gap) and is_space(self._gap[-1])

    def _mark(self, char: str) -> None:
        if _is_picture(char):  # goes with what was said
            self._flush_lead()
            self._release(char)
        elif self._lead or self._gap_ends_in_space() or _opens(char):
            self._hold(char)
        else:
            self._widen_gap(char)
            self._release(char)

    def _speak(self, char: str) -> None:
        apart = bool(self._gap or self._lead)
        strength = boundary(self._token, self._gap, self._lead, char) if apart else Strength.NONE
        if self._spoken and self._closes(strength, char):
            self._pieces.append(SegmentPiece(self._segment, "".join(self._released), True))
            self._released = []
            self._segment += 1
            self._length = 0
        self._remember(char)
        self._release(self._lead + char)
        self._spoken = True
        self._gap = self._lead = ""

    def _closes(self, strength: Strength, char: str) -> bool:
        if self._length + length_of(self._lead + char) > self._rule.max_chars:
            return not joins_next(self._previous, char)
        needed = self._rule.needs(self._length)
        return needed is not None and strength >= needed

    def _remember(self, char: str) -> None:
        changes_script = bool(self._token) and is_wide(self._token[-1]) != is_wide(char)
        if changes_script or any(is_space(mark) for mark in self._gap):
            self._token = self._lead + char
        else:
            self._token = (self._token + self._gap + self._lead + char)[-_TOKEN_CHARS:]


def _is_picture(char: str) -> bool:
    """Emoji, arrows and characters without meaning, but not the signs that belong to a word (°, №, ©)."""
    category = unicodedata.category(char)
    return category in {"Cs", "Cc", "Cn", "Co"} or (category == "So" and char > "\u2190")


def _opens(char: str) -> bool:
    return char in _OPENERS or unicodedata.category(char) in {"Ps", "Pi"}
