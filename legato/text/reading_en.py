"""What a reading is: spoken words for a written form, and what stands around the form when it is read.

Owns the stated look-ahead. Words are lower- or mixed-case letters, apostrophes and hyphens; one that ends in a full
stop is spelled letter by letter; `","` is a pause. Knows no positions in the text: `normalize_en` puts them on.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from legato.text import numbers_en as num

LOOK_AHEAD = 2
"""Pieces after the one that is read."""
NUMBER = r"\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+(?:\.\d+)?|\.\d+"
HALF_DAY = frozenset(("am", "pm", "a.m", "p.m"))
_TRAIL = ".,!?;:)]}\"'*_~…—"


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
RuleTable = list[tuple[str, Rule]]
"""Patterns that a whole core has to match, first match first; a rule may decline."""


def number_words(text: str) -> list[str]:
    """`1,280` `3.14` `.5` `22,1` -> words. A comma before other than three digits is a decimal comma."""
    if re.fullmatch(r"\d+,\d{1,2}|\d+,\d{4,}", text):
        text = text.replace(",", ".")
    whole, dot, part = text.replace(",", "").partition(".")
    return num.decimal(whole, part) if dot and part else num.whole_number(whole)


def amount_words(text: str) -> list[str]:
    """A bare number: a year where it looks like one."""
    if re.fullmatch(r"1[1-9]\d\d|20\d\d", text):
        return num.year(int(text))
    return number_words(text)
