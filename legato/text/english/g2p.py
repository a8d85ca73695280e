"""English grapheme-to-phoneme conversion: the word table in `words.py`, gruut's lexicon, then gruut's CRF model.

An `EnglishG2P` holds the lexicon (about 125,000 words, loaded in 0.1 s) and the CRF model (loaded at the first unknown
word). Words are converted one at a time without part-of-speech tags. The phones of a word depend only on its spelling,
so they never change when more text arrives. Input words contain only letters, apostrophes and hyphens (see
`normalizer.py`).

Data: `gruut-lang-en` (MIT). Only its data files are read; gruut is not imported.
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
from legato.text.english import phones as ph
from legato.text.english.morphology import ending_s, from_parts
from legato.text.english.words import LETTERS, WORDS

_MAX_ACRONYM_LETTERS = 5
_NO_PHONE = "_"
_REPEATED_LETTER = re.compile(r"(.)\1\1+")


class CrfTagger(Protocol):
    """Sequence tagger: takes one feature dict per letter and returns one label per letter."""

    def tag(self, features: list[dict[str, str | bool | float]]) -> list[str]: ...


class EnglishG2P:
    """Converts words to phones. Can be shared between streams; results do not depend on earlier calls."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder or _data_folder()
        self._lexicon = _read_lexicon(self._folder / "lexicon.db")
        self._tagger: CrfTagger | None = None
        self.phones = lru_cache(maxsize=20_000)(self._phones)
        """Phones of one word of letters, apostrophes and hyphens; `()` if it has no letter."""

    def has_entry(self, word: str) -> bool:
        """True if the function word table or the lexicon contains the word. Case is ignored."""
        word = word.lower()
        return word in WORDS or word in self._lexicon

    def _phones(self, word: str) -> tuple[str, ...]:
        parts = [part for part in word.replace("’", "'").split("-") if part.strip("'")]
        return tuple(phone for part in parts for phone in self._phones_of_part(part))

    def _phones_of_part(self, word: str) -> tuple[str, ...]:
        """Phones of a word without hyphens. Methods are tried from the most to the least reliable."""
        lower = word.lower()
        if lower.strip("'") in WORDS and lower not in self._lexicon:
            lower = lower.strip("'")
        if word.isupper() and self._is_acronym(word):
            return self.spell(word)
        lower = self._collapse_repeats(lower)
        if known := self._lookup(lower):
            return known
        base, suffix = _split_possessive(lower)
        if suffix or base != lower:
            cased = word[: len(base)]  # original case, so that an acronym is recognized
            phones = self._phones_of_part(cased) if base else ()
            return phones + (ending_s(phones) if suffix else ())
        parts = _split_camel_case(word)
        if len(parts) > 1:
            return tuple(phone for part in parts for phone in self._phones_of_part(part))
        if len(lower) <= _MAX_ACRONYM_LETTERS and not set(lower) & set("aeiouy"):
            return self.spell(lower)
        return from_parts(lower, self._lookup) or self._predict(lower)

    def _lookup(self, word: str) -> tuple[str, ...] | None:
        if word in WORDS:
            return tuple(WORDS[word].split())
        return ph.from_ipa(self._lexicon[word].split()) if word in self._lexicon else None

    def _collapse_repeats(self, word: str) -> str:
        """Reduce letters repeated three or more times to two, or to one if that is a known word (*sooooo*)."""
        if not _REPEATED_LETTER.search(word):
            return word
        twice, once = _REPEATED_LETTER.sub(r"\1\1", word), _REPEATED_LETTER.sub(r"\1", word)
        return once if once in WORDS or (self.has_entry(once) and not self.has_entry(twice)) else twice

    def _is_acronym(self, word: str) -> bool:
        """True if an upper-case word is short and not in the lexicon (*FBI*, *US*; not *HELLO*, *NASA*)."""
        lower = word.lower()
        if word == "US":
            return True
        return 2 <= len(word) <= _MAX_ACRONYM_LETTERS and word.isalpha() and not self.has_entry(lower)

    def spell(self, letters: str) -> tuple[str, ...]:
        """Phones of the letter names. The last letter has the primary stress."""
        names = [LETTERS[letter] for letter in letters.lower() if letter in LETTERS]
        names[:-1] = [name.replace(ph.PRIMARY, ph.SECONDARY) for name in names[:-1]]
        return tuple(phone for name in names for phone in name.split())

    def _predict(self, word: str) -> tuple[str, ...]:
        """Phones predicted by the CRF model; letter names if the prediction has no vowel."""
        if self._tagger is None:
            self._tagger = _open_tagger(self._folder / "g2p" / "model.crf")
        letters = [letter for letter in word if letter.isalpha()]
        if not letters:
            return ()
        labels = self._tagger.tag([_features(letters, i) for i in range(len(letters))])
        symbols = [s for label in labels for s in _decode(label).split("|") if s and s != _NO_PHONE]
        phones = ph.from_ipa(symbols)
        if not any(ph.is_vowel(phone) for phone in phones):
            return self.spell(word)
        return _with_one_primary_stress(phones)


def _data_folder() -> Path:
    spec = find_spec("gruut_lang_en")
    if spec is None or not spec.submodule_search_locations:
        raise CheckpointError("the English front end requires the package gruut-lang-en: pip install gruut-lang-en")
    return Path(next(iter(spec.submodule_search_locations)))


def _read_lexicon(path: Path) -> dict[str, str]:
    """Map each word to the IPA symbols of its first pronunciation."""
    if not path.is_file():
        raise CheckpointError(f"English lexicon not found: {path}")
    with sqlite3.connect(f"{path.as_uri()}?mode=ro&immutable=1", uri=True) as database:
        rows = database.execute("SELECT word, phonemes FROM word_phonemes WHERE pron_order = 0")
        return dict(rows.fetchall())


def _open_tagger(path: Path) -> CrfTagger:
    import pycrfsuite

    tagger: CrfTagger = pycrfsuite.Tagger()
    tagger.open(str(path))  # type: ignore[attr-defined]
    return tagger


def _encode(text: str) -> str:
    return base64.b64encode(text.encode()).decode("ascii")


def _decode(label: str) -> str:
    return base64.b64decode(label.encode("ascii")).decode()


def _features(letters: list[str], i: int) -> dict[str, str | bool | float]:
    """Input features of gruut's CRF model: the letter, three letters of context on each side, and word boundaries."""
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


def _with_one_primary_stress(phones: tuple[str, ...]) -> tuple[str, ...]:
    """Ensure exactly one primary stress, because the CRF model may predict none or several. The last one is kept."""
    stressed = [i for i, phone in enumerate(phones) if ph.stress_of(phone) == ph.PRIMARY]
    if stressed:
        lesser = set(stressed[:-1])
        return tuple(p.replace(ph.PRIMARY, ph.SECONDARY) if i in lesser else p for i, p in enumerate(phones))
    vowels = [i for i, phone in enumerate(phones) if ph.is_vowel(phone)]
    chosen = next((i for i in vowels if phones[i] != "ə"), vowels[0])
    vowel = phones[chosen][-1]
    return (*phones[:chosen], ph.PRIMARY + ("ʌ" if vowel == "ə" else vowel), *phones[chosen + 1 :])


def _split_possessive(word: str) -> tuple[str, bool]:
    """Split off a possessive: `dog's` -> (`dog`, True), `dogs'` -> (`dogs`, False), `dog` -> (`dog`, False)."""
    if word.endswith("'s"):
        return word[:-2], True
    stripped = word.strip("'")
    return stripped, False


def _split_camel_case(word: str) -> list[str]:
    """`OpenAI` -> `Open`, `AI`; `iPhone` -> `i`, `Phone`. A word without inner capitals is returned unchanged."""
    parts: list[str] = [""]
    for i, letter in enumerate(word):
        before = word[i - 1] if i else ""
        after = word[i + 1] if i + 1 < len(word) else ""
        starts = letter.isupper() and before and (before.islower() or (before.isupper() and after.islower()))
        if starts and parts[-1]:
            parts.append("")
        parts[-1] += letter
    return parts
