"""Character classes for text processing: speakable, wide (CJK), white space, grapheme extend.

Pure functions, independent of model and language. Used by the segmenter, the frame budget and the server.
"""

from __future__ import annotations

import unicodedata

# Unicode blocks whose characters are about one syllable each and are written without spaces between words.
_WIDE_RANGES = (
    (0x1100, 0x11FF),  # Hangul jamo
    (0x2E80, 0x2FDF),  # CJK radicals
    (0x3005, 0x3007),  # iteration mark, closing mark, zero
    (0x3021, 0x3029),  # Hangzhou numerals
    (0x3040, 0x30FF),  # kana
    (0x3100, 0x318F),  # bopomofo, compatibility jamo
    (0x31A0, 0x31FF),  # bopomofo and kana extensions
    (0x3400, 0x4DBF),
    (0x4E00, 0x9FFF),
    (0xA960, 0xA97F),
    (0xAC00, 0xD7FF),  # Hangul syllables
    (0xF900, 0xFAFF),
    (0xFF66, 0xFF9D),  # half-width kana
    (0x20000, 0x3FFFF),
)

_SPACING_EXTENDERS = frozenset("\u0e33\u0eb3\uff9e\uff9f")  # letters that Unicode adds to the preceding cluster
_NO_BREAK_SPACES = frozenset("\u00a0\u202f\u2060\ufeff")


def is_wide(char: str) -> bool:
    """True for Chinese, Japanese and Korean characters, each of which is about one spoken syllable."""
    point = ord(char)
    if point < 0x1100:
        return False
    return any(low <= point <= high for low, high in _WIDE_RANGES)


def is_speakable(char: str) -> bool:
    """True for letters and numbers of any script."""
    return unicodedata.category(char)[0] in "LN"


def is_space(char: str) -> bool:
    """True for white space, including no-break spaces."""
    return char.isspace() or char in _NO_BREAK_SPACES


def is_no_break_space(char: str) -> bool:
    """True for spaces at which text must not be broken."""
    return char in _NO_BREAK_SPACES


def extends(char: str) -> bool:
    """True if `char` continues the previous grapheme (marks, joiners, variation selectors, low surrogates)."""
    if char in "\u200d\u200c" or char in _SPACING_EXTENDERS:
        return True
    point = ord(char)
    if 0xDC00 <= point <= 0xDFFF or 0x1F3FB <= point <= 0x1F3FF or 0xE0020 <= point <= 0xE007F:
        return True
    return unicodedata.category(char)[0] == "M"


def joins_next(previous: str, char: str) -> bool:
    """True if `previous` and `char` form one grapheme although `char` is not an extender.

    This happens after joiners, viramas and high surrogates, and between Hangul jamo of one syllable.
    """
    if previous in "\u200d\u2060" or unicodedata.combining(previous) == 9:
        return True
    left, right = ord(previous), ord(char)
    if 0xD800 <= left <= 0xDBFF:
        return True
    lead = 0x1100 <= left <= 0x115F or 0xA960 <= left <= 0xA97F
    vowel = 0x1160 <= left <= 0x11A7 or 0xD7B0 <= left <= 0xD7C6
    open_syllable = 0xAC00 <= left <= 0xD7A3 and (left - 0xAC00) % 28 == 0
    if 0x1160 <= right <= 0x11A7 or 0xD7B0 <= right <= 0xD7C6:
        return lead or vowel or open_syllable
    if 0x11A8 <= right <= 0x11FF or 0xD7CB <= right <= 0xD7FB:
        return vowel or 0xAC00 <= left <= 0xD7A3 or 0x11A8 <= left <= 0x11FF
    return lead and (0x1100 <= right <= 0x115F or 0xAC00 <= right <= 0xD7A3)
