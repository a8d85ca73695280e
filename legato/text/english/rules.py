"""All normalization rules: `read` converts the core of a piece into spoken words.

Pure: the result depends on the core, the previous core and at most `LOOK_AHEAD` following pieces.
"""

from __future__ import annotations

import re

from legato.text.english.reading import Context, Reading
from legato.text.english.rules_dates import DATE_RULES
from legato.text.english.rules_numbers import NUMBER_RULES
from legato.text.english.rules_words import WORD_RULES

_RULES = [(re.compile(pattern), rule) for pattern, rule in (*DATE_RULES, *NUMBER_RULES, *WORD_RULES)]


def read(core: str, context: Context) -> Reading | None:
    """Result of the first matching rule, `None` if no rule matches (a plain word or a compound form)."""
    for pattern, rule in _RULES:
        match = pattern.fullmatch(core)
        reading = rule(match, context) if match else None
        if reading is not None:
            return reading
    return None
