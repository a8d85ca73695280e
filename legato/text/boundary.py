"""Strength of a cut between two words: paragraph, sentence end, clause, space, or no cut.

Stateless rules and word lists for the ten languages of the official models. `segmenter.py` decides which strength a
segment of a given length needs.

A missed sentence end only makes the segment longer, but a false one is audible. Ambiguous cases are therefore not
treated as a sentence end.
"""

from __future__ import annotations

import re
import unicodedata
from enum import IntEnum

from legato.text.characters import is_no_break_space, is_space, is_wide


class Strength(IntEnum):
    """How suitable a position is for a cut: `NONE` would be audible, `PARAGRAPH` is inaudible."""

    NONE = 0
    SPACE = 1
    CLAUSE = 2
    SENTENCE = 3
    PARAGRAPH = 4


_LATIN_STOPS = frozenset(".!?…")
_UNSPACED_STOPS = frozenset("。！？｡‼⁇⁈⁉।॥؟۔።။។։")
"""Sentence-final marks that end a sentence without a space after them."""
_FULL_WIDTH_DOT = "．"
_STOPS = _LATIN_STOPS | _UNSPACED_STOPS | {_FULL_WIDTH_DOT}
_LATIN_CLAUSES = frozenset(",;:–—")
_WIDE_CLAUSES = frozenset("，、；：､﹐﹑،؛")


def _word_set(listed: str) -> frozenset[str]:
    return frozenset(listed.split())


_ABBREVIATIONS = (
    _word_set("mr mrs ms dr prof rev hon gen capt lt sgt gov sen jr sr messrs st mt vs etc cf al viz approx dept est")
    | _word_set("inc ltd corp bros ave blvd")
    | _word_set("bzw usw ggf evtl inkl exkl str hr fr bspw vgl sog bd dipl zzgl")  # German
    | _word_set("mm mme mlle mlles mgr env sra srta sres dra ud uds sig sigg dott ing avv ecc")  # Romance
    | _word_set("гг руб коп стр см др ул им тыс млн млрд")
)
_BEFORE_NUMBERS = _word_set(
    "no nos nr p pp pg fig figs vol vols ch art op ca max min tel abb pag pág págs núm"
) | _word_set("jan feb mar apr jun jul aug sept sep oct nov dec")
"""Abbreviations only before a number; elsewhere they are ordinary words ("he said no. Then")."""
_DOTTED_LETTERS = re.compile(r"(?:[^\W\d_]{1,3}\.)+[^\W\d_]{1,3}")
_EDGE_MARKS = re.compile(r"^\W+")


def cut_strength(last_word: str, gap: str, lead: str, char: str) -> Strength:
    """Strength of a cut between `gap` and `lead`.

    `last_word`: the previous word (its last characters suffice). `gap`: punctuation and spaces after it. `lead`:
    punctuation directly before the next word. `char`: first character of the next word.
    """
    lines = gap.count("\n") + gap.count("\r") - gap.count("\r\n") + 2 * gap.count("\u2029") + 2 * gap.count("\f")
    if lines >= 2:
        return Strength.PARAGRAPH
    if _is_abbreviation_dot(last_word, gap, char):
        return Strength.NONE
    strength = _by_marks(last_word, gap, lead, char)
    return max(strength, Strength.CLAUSE) if lines else strength


def is_abbreviation(last_word: str, following: str) -> bool:
    """True if a full stop after `last_word` probably belongs to an abbreviation (Dr, e.g, a.m, initials, 2)."""
    word = _EDGE_MARKS.sub("", last_word)
    if not word or is_wide(word[-1]):
        return False
    single_letter = len(word) == 1 and word.isalpha()
    ordinal = len(word) <= 2 and word.isdecimal()
    listed = word.lower() in _ABBREVIATIONS or (following.isdecimal() and word.lower() in _BEFORE_NUMBERS)
    return single_letter or ordinal or listed or _DOTTED_LETTERS.fullmatch(word) is not None


def _is_abbreviation_dot(last_word: str, gap: str, char: str) -> bool:
    """True if the only full stop in the gap directly follows an abbreviation."""
    stops = [mark for mark in gap if mark in _STOPS]
    return stops == ["."] and gap[0] == "." and not _has_clause_mark(gap) and is_abbreviation(last_word, char)


def _has_clause_mark(marks: str) -> bool:
    return any(mark in _LATIN_CLAUSES or mark in _WIDE_CLAUSES for mark in marks)


def _has_space(marks: str) -> bool:
    return any(is_space(mark) for mark in marks)


def _between_wide(last_word: str, char: str) -> bool:
    return bool(last_word) and is_wide(last_word[-1]) and is_wide(char)


def _by_marks(last_word: str, gap: str, lead: str, char: str) -> Strength:
    # A clause mark after the last full stop ("etc., and") makes it a clause boundary.
    last_stop = max((i for i, mark in enumerate(gap) if mark in _STOPS), default=-1)
    if last_stop >= 0 and not _has_clause_mark(gap[last_stop + 1 :]):
        return _at_stop(last_word, gap, gap[last_stop + 1 :], lead, char)
    if _has_clause_mark(gap) or " -" in gap:
        return _at_clause(last_word, gap, lead, char)
    return _at_space(last_word, gap, lead, char)


def _at_stop(last_word: str, gap: str, after: str, lead: str, char: str) -> Strength:
    """Strength after a sentence-final mark. `after`: the part of the gap after the last one."""
    stops = [mark for mark in gap if mark in _STOPS]
    spaced = _has_space(after)
    inside_quote = bool(after) and not spaced and not lead  # 「え！」と言う: the quote ends, the sentence continues
    ends = Strength.CLAUSE if inside_quote else Strength.SENTENCE
    if any(mark in _UNSPACED_STOPS for mark in stops):
        return ends
    if _FULL_WIDTH_DOT in stops:
        return ends if spaced or lead or is_wide(char) or is_wide(last_word[-1:] or " ") else Strength.NONE
    if not spaced:  # 3.14, v1.2.0, example.com, wait...what
        if not _between_wide(last_word, char):
            return Strength.NONE
        trails_off = all(mark in ".…" for mark in stops) and (len(stops) > 1 or stops == ["…"])
        return Strength.CLAUSE if trails_off else ends
    if char.islower():  # "Really?" he asked; wait... what
        return Strength.NONE if stops == ["."] else Strength.CLAUSE
    return Strength.SENTENCE


def _at_clause(last_word: str, gap: str, lead: str, char: str) -> Strength:
    """Strength after a clause mark such as a comma or dash."""
    if not _has_space(gap) and not lead and last_word[-1:].isdecimal() and char.isdecimal():
        return Strength.NONE  # 22,1 and 10:30, also in full-width characters
    if _has_space(gap) or "—" in gap or any(mark in _WIDE_CLAUSES for mark in gap) or _between_wide(last_word, char):
        return Strength.CLAUSE
    return Strength.NONE


def _at_space(last_word: str, gap: str, lead: str, char: str) -> Strength:
    """Strength of a gap without sentence-final marks and clause marks."""
    spaces = [mark for mark in gap if is_space(mark)]
    if not spaces:
        brackets = any(unicodedata.category(mark) in {"Pe", "Ps"} for mark in gap + lead)
        return Strength.SPACE if brackets and (is_wide(char) or is_wide(last_word[-1:] or " ")) else Strength.NONE
    if all(is_no_break_space(space) for space in spaces) or last_word[-1:].isdecimal():
        return Strength.NONE  # 9 a.m., 22,1 °C, 5 000
    return Strength.SPACE
