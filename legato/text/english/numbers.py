"""Numbers as English words: cardinals, ordinals, years, decimals, fractions, digits. Pure functions.

The rules in `rules_*.py` choose how a number is read.
"""

from __future__ import annotations

_ONES = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen"
).split()
_TENS = "zero ten twenty thirty forty fifty sixty seventy eighty ninety".split()
_SCALES = ("", "thousand", "million", "billion", "trillion")
_ORDINALS = {
    "one": "first",
    "two": "second",
    "three": "third",
    "five": "fifth",
    "eight": "eighth",
    "nine": "ninth",
    "twelve": "twelfth",
}
MAX_CARDINAL_DIGITS = 15
"""Longer numbers are read digit by digit."""


def cardinal(number: int) -> list[str]:
    """Words of an integer. Negative numbers start with *minus*; more than 15 digits are read digit by digit."""
    if number < 0:
        return ["minus", *cardinal(-number)]
    if len(str(number)) > MAX_CARDINAL_DIGITS:
        return digits(str(number))
    if number == 0:
        return ["zero"]
    words: list[str] = []
    for power in range(len(_SCALES) - 1, -1, -1):
        group = number // 1000**power % 1000
        if group:
            words += _below_thousand(group) + ([_SCALES[power]] if power else [])
    return words


def _below_thousand(number: int) -> list[str]:
    words: list[str] = []
    if number >= 100:
        words += [_ONES[number // 100], "hundred"]
        number %= 100
    if number >= 20:
        words.append(_TENS[number // 10])
        number %= 10
    if number:
        words.append(_ONES[number])
    return words


def ordinal(number: int) -> list[str]:
    """21 -> twenty first."""
    words = cardinal(number)
    last = words[-1]
    if last in _ORDINALS:
        words[-1] = _ORDINALS[last]
    elif last.endswith("y"):
        words[-1] = last[:-1] + "ieth"
    else:
        words[-1] = last + "th"
    return words


def digits(text: str) -> list[str]:
    """The name of each digit; other characters are skipped."""
    return [_ONES[int(character)] for character in text if character.isascii() and character.isdigit()]


def year(number: int) -> list[str]:
    """A year from 1000 to 2099: nineteen eighty seven, two thousand nine, twenty twenty four."""
    high, low = divmod(number, 100)
    if high % 10 == 0 and low < 10:
        return cardinal(number)
    if low == 0:
        return [*cardinal(high), "hundred"]
    if low < 10:
        return [*cardinal(high), "oh", _ONES[low]]
    return cardinal(high) + cardinal(low)


def plural(words: list[str]) -> list[str]:
    """The same words with the last one in the plural: nineties, sixes, hundreds."""
    last = words[-1]
    if last.endswith("y"):
        last = last[:-1] + "ies"
    else:
        last += "es" if last.endswith(("x", "s")) else "s"
    return [*words[:-1], last]


def decimal(whole: str, fraction: str) -> list[str]:
    """`3`, `14` -> three point one four."""
    return [*whole_number(whole or "0"), "point", *digits(fraction)]


def whole_number(text: str) -> list[str]:
    """A digit string as a cardinal. With a leading zero or too many digits it is read digit by digit."""
    if (len(text) > 1 and text[0] == "0") or len(text) > MAX_CARDINAL_DIGITS:
        return digits(text)
    return cardinal(int(text))


def fraction(numerator: int, denominator: int) -> list[str]:
    """1/2 -> one half, 3/4 -> three quarters, 22/7 -> twenty two sevenths, 5/128 -> five over one hundred…"""
    if denominator == 0 or denominator > 100 or numerator > 100 or denominator == 1:
        return [*cardinal(numerator), "over", *cardinal(denominator)]
    if denominator == 2:
        part = ["half"] if numerator == 1 else ["halves"]
    elif denominator == 4:
        part = ["quarter"] if numerator == 1 else ["quarters"]
    else:
        part = ordinal(denominator) if numerator == 1 else plural(ordinal(denominator))
    return cardinal(numerator) + part
