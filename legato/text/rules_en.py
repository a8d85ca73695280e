"""How one written English form is read: `read` turns the core of a piece, with what follows it, into spoken words.

Pure: a reading depends on the core, at most `LOOK_AHEAD` pieces after it and the piece before it. Knows no positions in
the text.
"""

from __future__ import annotations

import re

from legato.text.reading_en import Context, Reading
from legato.text.rules_dates_en import DATE_RULES
from legato.text.rules_numbers_en import NUMBER_RULES
from legato.text.rules_words_en import WORD_RULES

_RULES = [(re.compile(pattern), rule) for pattern, rule in (*DATE_RULES, *NUMBER_RULES, *WORD_RULES)]


def read(core: str, context: Context) -> Reading | None:
    """The reading of a core by the first rule that knows it, None where none does (a plain word, or several forms)."""
    for pattern, rule in _RULES:
        match = pattern.fullmatch(core)
        reading = rule(match, context) if match else None
        if reading is not None:
            return reading
    return None
