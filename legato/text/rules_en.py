"""How one written English form is read: `read` turns the core of a piece, with what follows it, into spoken words.

Pure: a reading depends on the core, at most `LOOK_AHEAD` pieces after it and the piece before it. Words are lower- or
mixed-case letters, apostrophes and hyphens; one that ends in a full stop is spelled letter by letter; `","` is a
pause. Knows no positions in the text: `normalize_en` puts them on.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from legato.text import numbers_en as num
from legato.text import tables_en as tab

LOOK_AHEAD = 2
"""Pieces after the one that is read."""

_NUMBER = r"\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+(?:\.\d+)?|\.\d+"
_UNIT = "|".join(sorted((re.escape(unit) for unit in tab.UNITS), key=len, reverse=True))
_TRAIL = ".,!?;:)]}\"'*_~…—"
_HALF_DAY = frozenset(("am", "pm", "a.m", "p.m"))


@dataclass(frozen=True, slots=True)
class Context:
    """What stands around a core: texts of the following pieces (at most `LOOK_AHEAD`), and the piece before."""

    following: Sequence[str]
    previous: str
    stopped: bool
    """A full stop follows the core directly."""
    in_brackets: bool = False

    def next_core(self, index: int = 0) -> str:
        """A following piece without its closing punctuation, "" where there is none."""
        return self.following[index].rstrip(_TRAIL) if index < len(self.following) else ""

    def next_starts_sentence(self) -> bool:
        """The next piece starts with a capital, or nothing follows."""
        opened = self.following[0].lstrip("([{\"'*_") if self.following else ""
        return not self.following or opened[:1].isupper()


@dataclass(frozen=True, slots=True)
class Reading:
    """Spoken words; how many following pieces they used up; whether the full stop after the core ends no sentence."""

    words: Sequence[str]
    used: int = 0
    eats_stop: bool = False


Rule = Callable[["re.Match[str]", Context], "Reading | None"]


def number_words(text: str) -> list[str]:
    """`1,280` `3.14` `.5` `22,1` -> words. A comma before other than three digits is a decimal comma."""
    if re.fullmatch(r"\d+,\d{1,2}|\d+,\d{4,}", text):
        text = text.replace(",", ".")
    whole, dot, part = text.replace(",", "").partition(".")
    return num.decimal(whole, part) if dot and part else num.whole_number(whole)


def _amount(text: str) -> list[str]:
    """A bare number: a year where it looks like one."""
    if re.fullmatch(r"1[1-9]\d\d|20\d\d", text):
        return num.year(int(text))
    return number_words(text)


def _money(match: re.Match[str], context: Context) -> Reading:
    minus, symbol, amount, scale = match["minus"], match["symbol"], match["amount"], match["scale"] or ""
    one, many, hundredth = tab.CURRENCIES[symbol]
    words = ["minus"] if minus else []
    following = context.next_core().lower()
    if scale or following in tab.SCALE_WORDS:
        words += [*number_words(amount), tab.SCALES[scale] if scale else following, many]
        return Reading(words, used=0 if scale else 1)
    whole, _, cents = amount.replace(",", "").partition(".")
    whole = whole or "0"
    if len(cents) == 2 and hundredth:
        if int(whole):
            words += [*number_words(whole), one if int(whole) == 1 else many]
        if int(cents):
            plural = {"penny": "pence", "paisa": "paise"}.get(hundredth, hundredth + "s")
            words += ["and"] * bool(int(whole)) + [*num.cardinal(int(cents)), hundredth if int(cents) == 1 else plural]
        if words and words != ["minus"]:
            return Reading(words)
    return Reading([*words, *number_words(amount), one if amount == "1" else many])


def _time(match: re.Match[str], context: Context) -> Reading | None:
    hour, minute = int(match["hour"]), int(match["minute"])
    if hour > 24 or minute > 59:
        return None
    half = (match["half"] or "").lower().replace(".", "")
    used = 0
    if not half and context.next_core().lower() in _HALF_DAY:
        half, used = context.next_core().lower().replace(".", ""), 1
    words = num.cardinal(hour)
    if minute:
        words += (["oh"] if minute < 10 else []) + num.cardinal(minute)
    elif not half:
        words.append("o'clock" if 0 < hour < 13 else "hundred")
    if match["second"]:
        words += ["and", *num.cardinal(int(match["second"])), "seconds"]
    if half:
        return Reading([*words, half + "."], used, eats_stop=not context.next_starts_sentence())
    return Reading(words)


def _half_day(match: re.Match[str], context: Context) -> Reading:
    """`9am`."""
    words = [*num.cardinal(int(match[1])), match[2].lower().replace(".", "") + "."]
    return Reading(words, eats_stop=not context.next_starts_sentence())


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
    if short and name not in tab.MONTHS and not (context.stopped or context.next_core().isdigit()):
        return None
    month = short or name
    day = re.fullmatch(r"([0-3]?\d)(?:st|nd|rd|th)?", context.next_core())
    if not day or not 1 <= int(day[1]) <= 31:
        return Reading([month], eats_stop=True) if short else None
    words = [month, *num.ordinal(int(day[1]))]
    year = re.fullmatch(r"1\d{3}|20\d\d", context.next_core(1))
    if year and context.following[0].rstrip(",") == context.next_core():
        return Reading([*words, ",", *num.year(int(year[0]))], used=2)
    return Reading(words, used=1)


def _phone(match: re.Match[str], _context: Context) -> Reading:
    words: list[str] = ["plus"] if match[0].startswith("+") else []
    for group in re.findall(r"\d+", match[0]):
        words += [*num.digits(group), ","]
    return Reading(words[:-1])


def _area_code(match: re.Match[str], context: Context) -> Reading | None:
    if context.in_brackets and re.match(r"\d{3}[-.]\d{4}", context.next_core()):
        return Reading(num.digits(match[0]))
    return None


def _version(match: re.Match[str], _context: Context) -> Reading:
    words: list[str] = ["version"] if match[1] else []
    for i, part in enumerate(match[2].split(".")):
        words += (["point"] if i else []) + num.whole_number(part)
    return Reading(words)


def _fraction(match: re.Match[str], _context: Context) -> Reading:
    if match[0] == "24/7":
        return Reading(["twenty", "four", "seven"])
    return Reading(num.fraction(int(match[1]), int(match[2])))


def _ordinal(match: re.Match[str], _context: Context) -> Reading:
    return Reading(num.ordinal(int(match[1].replace(",", ""))))


def _decade(match: re.Match[str], _context: Context) -> Reading:
    number = int(match[1])
    return Reading(num.plural(num.year(number) if 1000 <= number <= 2099 and number != 2000 else num.cardinal(number)))


def _range(match: re.Match[str], context: Context) -> Reading:
    unit = match["unit"]
    words = [*_amount(match["low"]), "to", *_amount(match["high"])]
    if unit:
        return Reading(words + tab.unit_words(unit, one=False))
    return _with_unit(words, match["high"], context)


def _measure(match: re.Match[str], _context: Context) -> Reading:
    sign, amount, unit = match["sign"], match["amount"], match["unit"]
    words = (["minus"] if sign else []) + number_words(amount)
    return Reading(words + tab.unit_words(unit, one=amount == "1"))


def _number(match: re.Match[str], context: Context) -> Reading:
    sign, amount = match["sign"], match["amount"]
    words = ["minus" if sign == "-" else "plus"] if sign else []
    following = context.next_core()
    if following.lower() in _HALF_DAY and re.fullmatch(r"\d\d?", amount):
        half = following.lower().replace(".", "") + "."
        return Reading([*num.cardinal(int(amount)), half], used=1)
    if following.lower() in tab.MONTHS and re.fullmatch(r"[0-3]?\d", amount) and 1 <= int(amount) <= 31:
        article = [] if context.previous.lower() == "the" else ["the"]
        return Reading([*article, *num.ordinal(int(amount)), "of"])
    return _with_unit(words, amount, context, plain=True)


def _with_unit(words: list[str], amount: str, context: Context, *, plain: bool = False) -> Reading:
    """Add the unit that follows as a piece of its own, if one does."""
    unit = context.next_core()
    has_unit = unit in tab.UNITS and (unit not in ("s", "h", "l") or context.following[0].rstrip(",;:") == unit)
    if plain:
        words = words + (number_words(amount) if has_unit else _amount(amount))
    return Reading(words + tab.unit_words(unit, one=amount == "1"), used=1) if has_unit else Reading(words)


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
        return Reading(["street"], eats_stop=bool(context.following)) if context.stopped else None
    if name == "dr" and not named:
        return Reading(["drive"], eats_stop=bool(context.following))
    if not (context.stopped or (match[0][0].isupper() and named and name in ("mr", "mrs", "ms", "dr"))):
        return None
    return Reading(tab.TITLES[name].split(), eats_stop=True)


def _dotted(match: re.Match[str], context: Context) -> Reading | None:
    if not context.stopped and "." not in match[0] and match[0].lower() not in ("vs", "etc", "approx"):
        return None
    words = tab.DOTTED[match[0].lower()].split()
    return Reading(words, eats_stop=not context.next_starts_sentence())


def _before_number(match: re.Match[str], context: Context) -> Reading | None:
    if not context.stopped or not context.next_core()[:1].isdigit():
        return None
    return Reading([tab.BEFORE_NUMBER[match[0].lower()]], eats_stop=True)


def _initials(match: re.Match[str], context: Context) -> Reading | None:
    letters = match[0].replace(".", "")
    if len(letters) == 1 and not context.stopped:
        return Reading([letters + "."]) if letters == "A" and context.previous.lower() in tab.LETTERED else None
    return Reading([letters + "."], eats_stop=bool(context.following))


def _hash(match: re.Match[str], _context: Context) -> Reading:
    if match[1][0].isdigit():
        return Reading(["number", *number_words(match[1])])
    return Reading(["hashtag", match[1]])


def _rules() -> list[tuple[re.Pattern[str], Rule]]:
    money = rf"(?P<minus>-)?(?:US)?(?P<symbol>[$€£¥₹])(?P<amount>{_NUMBER})(?P<scale>k|K|M|B|bn|m)?"
    money_after = rf"(?P<minus>-)?(?P<amount>{_NUMBER})(?P<scale>)(?P<symbol>[€£¥₹$])"
    half = r"(?P<half>[ap]\.?m)?"
    phone = r"\d{3}-\d{4}|(?:\+?1[-.])?\d{3}[-.]\d{3}[-.]\d{4}|\+\d{1,3}(?:-?\d{2,})*"
    any_number = rf"{_NUMBER}|\d+,\d+"
    alternatives = {name: "|".join(map(re.escape, table)) for name, table in _TABLES.items()}
    table: list[tuple[str, Rule]] = [
        (money, _money),
        (money_after, _money),
        (r"(?P<hour>\d{1,2}):(?P<minute>\d{2})(?::(?P<second>\d{2}))?" + half, _time),
        (r"(?i:(\d{1,2})([ap]\.?m))", _half_day),
        (r"(\d{4})-(\d{1,2})-(\d{1,2})", _iso_date),
        (r"(\d{1,2})/(\d{1,2})/(\d{4})", _us_date),
        (phone, _phone),
        (r"\d{3}", _area_code),
        (r"([vV])(\d+(?:\.\d+)*)", _version),
        (r"()(\d+(?:\.\d+){2,})", _version),
        (r"(\d+)/(\d+)", _fraction),
        (r"(\d[\d,]*)(?:st|nd|rd|th)", _ordinal),
        (r"(\d{2,4})'?s", _decade),
        (rf"(?P<low>{_NUMBER})[-–](?P<high>{_NUMBER})(?P<unit>{_UNIT})?", _range),
        (rf"(?P<sign>-)?(?P<amount>{any_number})(?P<unit>{_UNIT})", _measure),
        (rf"(?P<sign>[-+])?(?P<amount>{any_number})", _number),
        (rf"(?i:{alternatives['months']})", _month),
        ("|".join(tab.ROMAN), _roman),
        (rf"(?i:{alternatives['before']})", _before_number),
        (rf"(?i:{alternatives['titles']})", _title),
        (rf"(?i:{alternatives['dotted']})", _dotted),
        (r"[A-Z]|(?:[A-Za-z]\.)+[A-Za-z]", _initials),
        (r"#([A-Za-z]\w*|\d+)", _hash),
    ]
    return [(re.compile(pattern), rule) for pattern, rule in table]


_TABLES: dict[str, Sequence[str]] = {
    "months": [*tab.MONTHS, *tab.MONTH_SHORT],
    "before": list(tab.BEFORE_NUMBER),
    "titles": list(tab.TITLES),
    "dotted": list(tab.DOTTED),
}
_RULES = _rules()


def read(core: str, context: Context) -> Reading | None:
    """The reading of a core by the first rule that knows it, None where none does (a plain word, or several forms)."""
    for pattern, rule in _RULES:
        match = pattern.fullmatch(core)
        reading = rule(match, context) if match else None
        if reading is not None:
            return reading
    return None
