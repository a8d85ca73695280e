"""English normalization rules for money, telephone numbers, versions, fractions, ranges, measures and numbers.

Pure functions; the types are in `reading.py`.
"""

from __future__ import annotations

import re

from legato.text.english import numbers as num
from legato.text.english import tables as tab
from legato.text.english.reading import HALF_DAY, NUMBER, Context, Reading, RuleTable, amount_words, number_words


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
            if int(whole):
                words.append("and")
            words += [*num.cardinal(int(cents)), hundredth if int(cents) == 1 else plural]
        if words and words != ["minus"]:
            return Reading(words)
    return Reading([*words, *number_words(amount), one if amount == "1" else many])


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
    words = [*amount_words(match["low"]), "to", *amount_words(match["high"])]
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
    if following.lower() in HALF_DAY and re.fullmatch(r"\d\d?", amount):
        half = following.lower().replace(".", "") + "."
        return Reading([*num.cardinal(int(amount)), half], used=1)
    if following.lower() in tab.MONTHS and re.fullmatch(r"[0-3]?\d", amount) and 1 <= int(amount) <= 31:
        article = [] if context.previous.lower() == "the" else ["the"]
        return Reading([*article, *num.ordinal(int(amount)), "of"])
    return _with_unit(words, amount, context, plain=True)


def _with_unit(words: list[str], amount: str, context: Context, *, plain: bool = False) -> Reading:
    """Append the unit if the next piece is one."""
    unit = context.next_core()
    has_unit = unit in tab.UNITS and (unit not in ("s", "h", "l") or context.following[0].rstrip(",;:") == unit)
    if plain:
        words = words + (number_words(amount) if has_unit else amount_words(amount))
    return Reading(words + tab.unit_words(unit, one=amount == "1"), used=1) if has_unit else Reading(words)


_UNIT = "|".join(sorted((re.escape(unit) for unit in tab.UNITS), key=len, reverse=True))
_ANY = rf"{NUMBER}|\d+,\d+"

NUMBER_RULES: RuleTable = [
    (rf"(?P<minus>-)?(?:US)?(?P<symbol>[$€£¥₹])(?P<amount>{NUMBER})(?P<scale>k|K|M|B|bn|m)?", _money),
    (rf"(?P<minus>-)?(?P<amount>{NUMBER})(?P<scale>)(?P<symbol>[€£¥₹$])", _money),
    (r"\d{3}-\d{4}|(?:\+?1[-.])?\d{3}[-.]\d{3}[-.]\d{4}|\+\d{1,3}(?:-?\d{2,})*", _phone),
    (r"\d{3}", _area_code),
    (r"([vV])(\d+(?:\.\d+)*)", _version),
    (r"()(\d+(?:\.\d+){2,})", _version),
    (r"(\d+)/(\d+)", _fraction),
    (r"(\d[\d,]*)(?:st|nd|rd|th)", _ordinal),
    (r"(\d{2,4})'?s", _decade),
    (rf"(?P<low>{NUMBER})[-–](?P<high>{NUMBER})(?P<unit>{_UNIT})?", _range),
    (rf"(?P<sign>-)?(?P<amount>{_ANY})(?P<unit>{_UNIT})", _measure),
    (rf"(?P<sign>[-+])?(?P<amount>{_ANY})", _number),
]
