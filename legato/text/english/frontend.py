"""Incremental English front end: normalizes text and converts it to phones.

The output is a flat list of `Unit` (a phone and the index of its word). `phone_tokenizer.py` adds the durations.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from legato.text.english.g2p import EnglishG2P
from legato.text.english.normalizer import EnglishNormalizer, Item, NormalizedWord, Pause


@dataclass(frozen=True, slots=True)
class Unit:
    """One phone. `word`: index of its word in `EnglishPhones.spoken`, -1 for a pause."""

    phone: str
    word: int


@lru_cache(maxsize=1)
def english_g2p() -> EnglishG2P:
    """The shared `EnglishG2P` of this process. Loading the lexicon takes 0.1 s."""
    return EnglishG2P()


def word_phones(g2p: EnglishG2P, word: str) -> tuple[str, ...]:
    """Phones of a normalized word. A word that ends in a full stop is spelled letter by letter."""
    return g2p.spell(word) if word.endswith(".") else g2p.phones(word)


class EnglishPhones:
    """Converts streamed text, split anywhere, to units. Returned units are final."""

    def __init__(self, g2p: EnglishG2P) -> None:
        self._g2p = g2p
        self._normalizer = EnglishNormalizer()
        self.spoken: list[NormalizedWord] = []
        """Words so far, indexed by `Unit.word`."""

    @property
    def unspeakable(self) -> tuple[str, ...]:
        """Letters of other scripts that were skipped."""
        return self._normalizer.unspeakable

    def push(self, text: str) -> list[Unit]:
        """Add text and return the units that are now final."""
        return self._units(self._normalizer.push(text))

    def finish(self) -> list[Unit]:
        """End the text and return the remaining units."""
        return self._units(self._normalizer.finish())

    def _units(self, items: Iterable[Item]) -> list[Unit]:
        units: list[Unit] = []
        for item in items:
            if isinstance(item, Pause):
                if self.spoken:
                    units.append(Unit(item.mark, -1))
                continue
            phones = word_phones(self._g2p, item.text)
            if phones:
                units += [Unit(phone, len(self.spoken)) for phone in phones]
                self.spoken.append(item)
        return units
