"""English words to phones: gruut's lexicon, its CRF guesser for the rest, and our own table of function words.

Owns the opened lexicon (about 125,000 words, read once, 0.1 s) and the guesser (opened at the first unknown word), for
the life of the process. Works one word at a time, without part-of-speech tags: the phones of a word depend on its
spelling alone, so that they never change when more text arrives. Knows no numbers, no punctuation and no durations:
`normalize_en` hands over words that are letters, apostrophes and hyphens only.

Data: `gruut-lang-en` (MIT); only its files are read, gruut itself is not imported.
"""

from __future__ import annotations

import base64
import re
import sqlite3
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Protocol

from legato.errors import CheckpointError
from legato.text import phones as ph
from legato.text.morphology_en import ending_s, from_parts
from legato.text.words_en import LETTERS, WORDS

_MAX_ACRONYM = 5
_NO_PHONE = "_"
_DRAWL = re.compile(r"(.)\1\1+")


class Guesser(Protocol):
    """A sequence tagger: one feature record a letter in, one label a letter out."""

    def tag(self, features: list[dict[str, str | bool | float]]) -> list[str]: ...


class EnglishWords:
    """Word -> phones. One instance serves any number of tracks; nothing in it depends on what was asked before."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder or _data_folder()
        self._lexicon = _read_lexicon(self._folder / "lexicon.db")
        self._guesser: Guesser | None = None
        self.phones = lru_cache(maxsize=20_000)(self._phones)
        """The phones of one word of letters, apostrophes and hyphens; `()` where it has no letter."""

    def knows(self, word: str) -> bool:
        """True when the word has an entry of its own (in any case)."""
        word = word.lower()
        return word in WORDS or word in self._lexicon

    def _phones(self, word: str) -> tuple[str, ...]:
        parts = [part for part in word.replace("’", "'").split("-") if part.strip("'")]
        return tuple(phone for part in parts for phone in self._part(part))

    def _part(self, word: str) -> tuple[str, ...]:
        lower = word.lower()
        if lower.strip("'") in WORDS and lower not in self._lexicon:
            lower = lower.strip("'")
        if word.isupper() and self._is_acronym(word):
            return self.spelled(word)
        lower = self._without_drawl(lower)
        if known := self._known(lower):
            return known
        base, suffix = _split_possessive(lower)
        if suffix or base != lower:
            cased = word[: len(base)]
            phones = self._part(cased) if base else ()
            return phones + (ending_s(phones) if suffix else ())
        humps = _humps(word)
        if len(humps) > 1:
            return tuple(phone for hump in humps for phone in self._part(hump))
        if len(lower) <= _MAX_ACRONYM and not set(lower) & set("aeiouy"):
            return self.spelled(lower)
        return from_parts(lower, self._known) or self._guess(lower)

    def _known(self, word: str) -> tuple[str, ...] | None:
        if word in WORDS:
            return tuple(WORDS[word].split())
        return ph.from_ipa(self._lexicon[word].split()) if word in self._lexicon else None

    def _without_drawl(self, word: str) -> str:
        """Letters repeated three times or more twice, or once where that makes a known word (*sooooo*, *helllllo*)."""
        if not _DRAWL.search(word):
            return word
        twice, once = _DRAWL.sub(r"\1\1", word), _DRAWL.sub(r"\1", word)
        return once if once in WORDS or (self.knows(once) and not self.knows(twice)) else twice

    def _is_acronym(self, word: str) -> bool:
        """Capitals alone: an acronym when short and not a word (*FBI*, *US*; not *HELLO*, *NASA*)."""
        lower = word.lower()
        if word == "US":
            return True
        return 2 <= len(word) <= _MAX_ACRONYM and word.isalpha() and not self.knows(lower)

    def spelled(self, letters: str) -> tuple[str, ...]:
        """The names of the letters, one after another; the last one carries the main stress."""
        names = [LETTERS[letter].split() for letter in letters.lower() if letter in LETTERS]
        for name in names[:-1]:
            name[:] = [phone.replace(ph.PRIMARY, ph.SECONDARY) for phone in name]
        return tuple(phone for name in names for phone in name)

    def _guess(self, word: str) -> tuple[str, ...]:
        if self._guesser is None:
            self._guesser = _open_guesser(self._folder / "g2p" / "model.crf")
        letters = [letter for letter in word if letter.isalpha()]
        if not letters:
            return ()
        labels = self._guesser.tag([_features(letters, i) for i in range(len(letters))])
        symbols = [s for label in labels for s in _decode(label).split("|") if s and s != _NO_PHONE]
        phones = ph.from_ipa(symbols)
        if not any(ph.is_vowel(phone) for phone in phones):
            return self.spelled(word)
        return _with_main_stress(phones)


def _data_folder() -> Path:
    spec = find_spec("gruut_lang_en")
    if spec is None or not spec.submodule_search_locations:
        raise CheckpointError("the English front end needs the package gruut-lang-en: pip install gruut-lang-en")
    return Path(next(iter(spec.submodule_search_locations)))


def _read_lexicon(path: Path) -> dict[str, str]:
    """word -> IPA symbols, the first pronunciation of each."""
    if not path.is_file():
        raise CheckpointError(f"the English lexicon is missing: {path}")
    with sqlite3.connect(f"{path.as_uri()}?mode=ro&immutable=1", uri=True) as database:
        rows = database.execute("SELECT word, phonemes FROM word_phonemes WHERE pron_order = 0")
        return dict(rows.fetchall())


def _open_guesser(path: Path) -> Guesser:
    import pycrfsuite

    tagger: Guesser = pycrfsuite.Tagger()
    tagger.open(str(path))  # type: ignore[attr-defined]
    return tagger


def _encode(text: str) -> str:
    return base64.b64encode(text.encode()).decode("ascii")


def _decode(label: str) -> str:
    return base64.b64decode(label.encode("ascii")).decode()


def _features(letters: list[str], i: int) -> dict[str, str | bool | float]:
    """The features that gruut's model was trained on: the letter, three on either side, and the word's ends."""
    features: dict[str, str | bool | float] = {"bias": 1.0, "grapheme": _encode(letters[i])}
    if i == 0:
        features["begin"] = True
    for j in range(1, 4):
        if i >= j:
            features[f"grapheme-{j}"] = _encode(letters[i - j])
    for j in range(1, 4):
        if i + j < len(letters):
            features[f"grapheme+{j}"] = _encode(letters[i + j])
    if i == len(letters) - 1:
        features["end"] = True
    return features


def _with_main_stress(phones: tuple[str, ...]) -> tuple[str, ...]:
    """The same phones with one main stress: the guesser gives none, or several, of which the last is kept."""
    stressed = [i for i, phone in enumerate(phones) if ph.stress_of(phone) == ph.PRIMARY]
    if stressed:
        lesser = set(stressed[:-1])
        return tuple(p.replace(ph.PRIMARY, ph.SECONDARY) if i in lesser else p for i, p in enumerate(phones))
    vowels = [i for i, phone in enumerate(phones) if ph.is_vowel(phone)]
    chosen = next((i for i in vowels if phones[i] != "ə"), vowels[0])
    vowel = phones[chosen][-1]
    return (*phones[:chosen], ph.PRIMARY + ("ʌ" if vowel == "ə" else vowel), *phones[chosen + 1 :])


def _split_possessive(word: str) -> tuple[str, bool]:
    """`dog's` -> (`dog`, True), `dogs'` -> (`dogs`, False), `dog` -> (`dog`, False)."""
    if word.endswith("'s"):
        return word[:-2], True
    stripped = word.strip("'")
    return stripped, False


def _humps(word: str) -> list[str]:
    """`OpenAI` -> `Open`, `AI`; `iPhone` -> `i`, `Phone`; a word without inner capitals -> itself."""
    humps: list[str] = [""]
    for i, letter in enumerate(word):
        before = word[i - 1] if i else ""
        after = word[i + 1] if i + 1 < len(word) else ""
        starts = letter.isupper() and before and (before.islower() or (before.isupper() and after.islower()))
        if starts and humps[-1]:
            humps.append("")
        humps[-1] += letter
    return humps
