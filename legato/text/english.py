"""English text to phones with their words, incrementally: normaliser and word pronunciations joined.

Owns nothing beyond the normaliser that it feeds. Its output is one flat list of units: a unit is a phone and the word
that it belongs to. Knows no durations.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from legato.text.g2p_en import EnglishWords
from legato.text.normalize_en import EnglishNormalizer, Item, Pause, SpokenWord


@dataclass(frozen=True, slots=True)
class Unit:
    """One phone. `word`: index of its spoken word, -1 for a pause."""

    phone: str
    word: int


@lru_cache(maxsize=1)
def english_words() -> EnglishWords:
    """The process's one lexicon (0.1 s to read)."""
    return EnglishWords()


def word_phones(words: EnglishWords, text: str) -> tuple[str, ...]:
    """Phones of a spoken word of the normaliser: a final full stop means letter by letter."""
    return words.spelled(text) if text.endswith(".") else words.phones(text)


class EnglishPhones:
    """Text in, cut anywhere; units out, final as soon as they are given."""

    def __init__(self, words: EnglishWords) -> None:
        self._words = words
        self._normalizer = EnglishNormalizer()
        self.spoken: list[SpokenWord] = []
        """Words so far; `Unit.word` counts them."""

    @property
    def unspeakable(self) -> tuple[str, ...]:
        """Letters of other scripts that were left out."""
        return self._normalizer.unspeakable

    def push(self, text: str) -> list[Unit]:
        """Take text; give the units that are final now."""
        return self._units(self._normalizer.push(text))

    def finish(self) -> list[Unit]:
        """No more text comes: give what is left."""
        return self._units(self._normalizer.finish())

    def _units(self, items: Iterable[Item]) -> list[Unit]:
        units: list[Unit] = []
        for item in items:
            if isinstance(item, Pause):
                if self.spoken:
                    units.append(Unit(item.mark, -1))
                continue
            phones = word_phones(self._words, item.text)
            if phones:
                units += [Unit(phone, len(self.spoken)) for phone in phones]
                self.spoken.append(item)
        return units
