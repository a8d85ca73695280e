"""Types shared by the normalization rules: `Context` (input), `Reading` (output), `Rule`.

Words of a reading contain letters, apostrophes and hyphens. A word that ends in a full stop is spelled letter by
letter; `","` is a pause.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from legato.text.english import numbers as num

LOOK_AHEAD = 2
"""Maximum number of following pieces that a rule may use."""
NUMBER = r"\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+(?:\.\d+)?|\.\d+"
HALF_DAY = frozenset(("am", "pm", "a.m", "p.m"))
_TRAIL = ".,!?;:)]}\"'*_~…—"


@dataclass(frozen=True, slots=True)
class Context:
    """Context of a core: the texts of the following pieces (at most `LOOK_AHEAD`) and the previous core."""

    following: Sequence[str]
    previous: str
    followed_by_stop: bool
    """True if a full stop directly follows the core."""
    in_brackets: bool = False

    def next_core(self, index: int = 0) -> str:
        """A following piece without its closing punctuation, "" if there is none."""
        return self.following[index].rstrip(_TRAIL) if index < len(self.following) else ""

    def next_starts_sentence(self) -> bool:
        """True if the next piece starts with a capital letter or there is none."""
        opened = self.following[0].lstrip("([{\"'*_") if self.following else ""
        return not self.following or opened[:1].isupper()


@dataclass(frozen=True, slots=True)
class Reading:
    """Result of a rule.

    `used`: number of following pieces consumed. `consumes_stop`: the full stop after the core is part of the
    abbreviation and ends no sentence.
    """

    words: Sequence[str]
    used: int = 0
    consumes_stop: bool = False


Rule = Callable[["re.Match[str]", Context], "Reading | None"]
RuleTable = list[tuple[str, Rule]]
"""(pattern, rule) pairs, tried in order. The pattern must match the whole core; a rule may still return `None`."""


def number_words(text: str) -> list[str]:
    """Words of `1,280`, `3.14`, `.5` or `22,1`. A comma that is not followed by three digits is a decimal comma."""
    if re.fullmatch(r"\d+,\d{1,2}|\d+,\d{4,}", text):
        text = text.replace(",", ".")
    whole, dot, part = text.replace(",", "").partition(".")
    return num.decimal(whole, part) if dot and part else num.whole_number(whole)


def amount_words(text: str) -> list[str]:
    """Words of a number without a unit, read as a year if it looks like one."""
    if re.fullmatch(r"1[1-9]\d\d|20\d\d", text):
        return num.year(int(text))
    return number_words(text)
