"""English normalization rules for dates and times of day. Pure functions; the types are in `reading.py`."""

from __future__ import annotations

import re

from legato.text.english import numbers as num
from legato.text.english import tables as tab
from legato.text.english.reading import HALF_DAY, Context, Reading, RuleTable


def _time(match: re.Match[str], context: Context) -> Reading | None:
    hour, minute = int(match["hour"]), int(match["minute"])
    if hour > 24 or minute > 59:
        return None
    half = (match["half"] or "").lower().replace(".", "")
    used = 0
    if not half and context.next_core().lower() in HALF_DAY:
        half, used = context.next_core().lower().replace(".", ""), 1
    words = num.cardinal(hour)
    if minute:
        words += (["oh"] if minute < 10 else []) + num.cardinal(minute)
    elif not half:
        words.append("o'clock" if 0 < hour < 13 else "hundred")
    if match["second"]:
        words += ["and", *num.cardinal(int(match["second"])), "seconds"]
    if half:
        return Reading([*words, half + "."], used, consumes_stop=not context.next_starts_sentence())
    return Reading(words)


def _half_day(match: re.Match[str], context: Context) -> Reading:
    """`9am`."""
    words = [*num.cardinal(int(match[1])), match[2].lower().replace(".", "") + "."]
    return Reading(words, consumes_stop=not context.next_starts_sentence())


def _date(year: int, month: int, day: int) -> Reading | None:
    if not (1 <= month <= 12 and 1 <= day <= 31):
        return None
    return Reading([tab.MONTHS[month - 1], *num.ordinal(day), ",", *num.year(year)])


def _iso_date(match: re.Match[str], _context: Context) -> Reading | None:
    return _date(int(match[1]), int(match[2]), int(match[3]))


def _us_date(match: re.Match[str], _context: Context) -> Reading | None:
    return _date(int(match[3]), int(match[1]), int(match[2]))


def _month(match: re.Match[str], context: Context) -> Reading | None:
    name = match[0].lower()
    short = tab.MONTH_SHORT.get(name)
    if short and name not in tab.MONTHS and not (context.followed_by_stop or context.next_core().isdigit()):
        return None
    month = short or name
    day = re.fullmatch(r"([0-3]?\d)(?:st|nd|rd|th)?", context.next_core())
    if not day or not 1 <= int(day[1]) <= 31:
        return Reading([month], consumes_stop=True) if short else None
    words = [month, *num.ordinal(int(day[1]))]
    year = re.fullmatch(r"1\d{3}|20\d\d", context.next_core(1))
    if year and context.following[0].rstrip(",") == context.next_core():
        return Reading([*words, ",", *num.year(int(year[0]))], used=2)
    return Reading(words, used=1)


_MONTHS = "|".join((*tab.MONTHS, *tab.MONTH_SHORT))

DATE_RULES: RuleTable = [
    (r"(?P<hour>\d{1,2}):(?P<minute>\d{2})(?::(?P<second>\d{2}))?(?P<half>[ap]\.?m)?", _time),
    (r"(?i:(\d{1,2})([ap]\.?m))", _half_day),
    (r"(\d{4})-(\d{1,2})-(\d{1,2})", _iso_date),
    (r"(\d{1,2})/(\d{1,2})/(\d{4})", _us_date),
    (rf"(?i:{_MONTHS})", _month),
]
