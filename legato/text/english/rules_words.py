"""English normalization rules for abbreviations, titles, initials, Roman numerals and hashtags.

Pure functions; the types are in `reading.py`.
"""

from __future__ import annotations

import re

from legato.text.english import numbers as num
from legato.text.english import tables as tab
from legato.text.english.reading import Context, Reading, RuleTable, number_words


def _roman(match: re.Match[str], context: Context) -> Reading | None:
    if not context.previous[:1].isupper():
        return None
    value = tab.ROMAN[match[0]]
    if context.previous.lower() in tab.COUNTED:
        return Reading(num.cardinal(value))
    return Reading(["the", *num.ordinal(value)])


def _title(match: re.Match[str], context: Context) -> Reading | None:
    name = match[0].lower()
    named = context.next_core()[:1].isupper() or context.next_core().lower() in ("and", "&")
    if name == "st" and not context.next_core()[:1].isupper():
        return Reading(["street"], consumes_stop=bool(context.following)) if context.followed_by_stop else None
    if name == "dr" and not named:
        return Reading(["drive"], consumes_stop=bool(context.following))
    if not (context.followed_by_stop or (match[0][0].isupper() and named and name in ("mr", "mrs", "ms", "dr"))):
        return None
    return Reading(tab.TITLES[name].split(), consumes_stop=True)


def _dotted(match: re.Match[str], context: Context) -> Reading | None:
    if not context.followed_by_stop and "." not in match[0] and match[0].lower() not in ("vs", "etc", "approx"):
        return None
    words = tab.DOTTED[match[0].lower()].split()
    return Reading(words, consumes_stop=not context.next_starts_sentence())


def _before_number(match: re.Match[str], context: Context) -> Reading | None:
    if not context.followed_by_stop or not context.next_core()[:1].isdigit():
        return None
    return Reading([tab.BEFORE_NUMBER[match[0].lower()]], consumes_stop=True)


def _initials(match: re.Match[str], context: Context) -> Reading | None:
    letters = match[0].replace(".", "")
    if len(letters) == 1 and not context.followed_by_stop:
        return Reading([letters + "."]) if letters == "A" and context.previous.lower() in tab.LETTERED else None
    return Reading([letters + "."], consumes_stop=bool(context.following))


def _hash(match: re.Match[str], _context: Context) -> Reading:
    if match[1][0].isdigit():
        return Reading(["number", *number_words(match[1])])
    return Reading(["hashtag", match[1]])


def _any_of(table: dict[str, str]) -> str:
    return "(?i:" + "|".join(map(re.escape, table)) + ")"


WORD_RULES: RuleTable = [
    ("|".join(tab.ROMAN), _roman),
    (_any_of(tab.BEFORE_NUMBER), _before_number),
    (_any_of(tab.TITLES), _title),
    (_any_of(tab.DOTTED), _dotted),
    (r"[A-Z]|(?:[A-Za-z]\.)+[A-Za-z]", _initials),
    (r"#([A-Za-z]\w*|\d+)", _hash),
]
