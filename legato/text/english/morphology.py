"""Phones of unknown words that consist of known parts: inflections, common prefixes and suffixes, compounds.

Pure functions; the caller provides the lexicon lookup. They are tried before the CRF model, which often predicts the
wrong stress for long words.
"""

from __future__ import annotations

from collections.abc import Callable

from legato.text.english import phones as ph

Lookup = Callable[[str], "tuple[str, ...] | None"]
"""Returns the phones of a known word, `None` for an unknown one."""

_VOICELESS = frozenset("ptkfθʃʧs")
_SIBILANT = frozenset("szʃʒʧʤ")
_SUFFIXES: dict[str, tuple[str, ...]] = {
    "ing": ("ɪ", "ŋ"),
    "ings": ("ɪ", "ŋ", "z"),
    "ly": ("l", "i"),
    "ness": ("n", "ə", "s"),
    "less": ("l", "ə", "s"),
    "ful": ("f", "ə", "l"),
    "er": ("ə", "ɹ"),
    "ers": ("ə", "ɹ", "z"),
    "or": ("ə", "ɹ"),
    "able": ("ə", "b", "ə", "l"),
    "ment": ("m", "ə", "n", "t"),
    "ish": ("ɪ", "ʃ"),
    "ism": ("ˌɪ", "z", "ə", "m"),
    "ist": ("ɪ", "s", "t"),
}
_PREFIXES: dict[str, str] = {
    "un": "ʌ n",
    "non": "n ˌɑ n",
    "re": "ɹ ˌi",
    "pre": "p ɹ ˌi",
    "mis": "m ˌɪ s",
    "dis": "d ˌɪ s",
    "over": "ˌO v ə ɹ",
    "under": "ˌʌ n d ə ɹ",
    "inter": "ˌɪ n t ə ɹ",
    "super": "s ˌu p ə ɹ",
    "anti": "ˌæ n t I",
    "micro": "m ˌI k ɹ O",
    "multi": "m ˌʌ l t i",
    "electro": "ɪ l ˌɛ k t ɹ O",
    "photo": "f ˌO T O",
    "neuro": "n ˌʊ ɹ O",
    "hyper": "h ˌI p ə ɹ",
    "cyber": "s ˌI b ə ɹ",
    "preter": "p ɹ ˌi t ə ɹ",
}
_MIN_PART_LETTERS = 4
"""Minimum letters of each part of a compound and of the word after a prefix. The stem before a suffix needs 3."""


def from_parts(word: str, lookup: Lookup) -> tuple[str, ...] | None:
    """Phones of an unknown lower-case word built from known words, `None` if it cannot be split."""
    return _inflected(word, lookup) or _prefixed(word, lookup) or _compound(word, lookup)


def ending_s(phones: tuple[str, ...]) -> tuple[str, ...]:
    """Phones of a plural or possessive -s after `phones`."""
    last = phones[-1:] or ("",)
    if last[0] in _SIBILANT:
        return ("ɪ", "z")
    return ("s",) if last[0] in _VOICELESS else ("z",)


def _ending_ed(phones: tuple[str, ...]) -> tuple[str, ...]:
    if phones[-1] in ("t", "d", "T"):
        return ("ɪ", "d")
    return ("t",) if phones[-1] in _VOICELESS else ("d",)


def _inflected(word: str, lookup: Lookup) -> tuple[str, ...] | None:
    for ending, suffix in (("s", ending_s), ("ed", _ending_ed)):
        if word.endswith(ending) and not word.endswith("ss"):
            base = _base_phones(word, ending, lookup)
            if base:
                return base + suffix(base)
    for ending, phones in _SUFFIXES.items():
        if word.endswith(ending):
            base = _base_phones(word, ending, lookup)
            if base:
                return base + phones
    return None


def _base_phones(word: str, ending: str, lookup: Lookup) -> tuple[str, ...] | None:
    """Phones of the word before an ending: unchanged, with a mute e, with y for i, or without consonant doubling."""
    stem = word[: -len(ending)]
    if len(stem) < 3:
        return None
    forms = [stem, stem + "e"]
    if stem.endswith("i"):
        forms.append(stem[:-1] + "y")
    if stem[-1] == stem[-2]:
        forms.append(stem[:-1])
    if ending == "s" and stem.endswith("e"):
        forms.append(stem[:-1])
    return next((phones for form in forms if (phones := lookup(form))), None)


def _prefixed(word: str, lookup: Lookup) -> tuple[str, ...] | None:
    for prefix, phones in _PREFIXES.items():
        rest = word[len(prefix) :]
        if word.startswith(prefix) and len(rest) >= _MIN_PART_LETTERS:
            found = lookup(rest) or _inflected(rest, lookup)
            if found:
                return (*phones.split(), *found)
    return None


def _compound(word: str, lookup: Lookup) -> tuple[str, ...] | None:
    """Phones of two joined known words. The primary stress of the second becomes secondary."""
    for at in range(len(word) - _MIN_PART_LETTERS, _MIN_PART_LETTERS - 1, -1):
        first, second = lookup(word[:at]), lookup(word[at:])
        if first and second:
            return first + tuple(phone.replace(ph.PRIMARY, ph.SECONDARY) for phone in second)
    return None
