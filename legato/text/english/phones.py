"""Phone inventory of the English front end, and conversion from the lexicon's IPA.

Phones use the alphabet of Misaki, the G2P library of Kokoro (one letter for a diphthong), with the stress mark merged
into the vowel: ``"ˈA"`` is the stressed vowel of *day*. Each pause mark is also a phone, because it affects intonation.
Phone ids are positions in the checkpoint's list (`text_track.phones`).
"""

from __future__ import annotations

from collections.abc import Iterable

END = "end"
"""Marks the end of the text and pads windows that extend beyond it."""
START_SILENCE = "sil"
END_SILENCE = "fin"
FULL_STOP, COMMA, QUESTION, EXCLAMATION = ".", ",", "?", "!"

PAUSES: tuple[str, ...] = (FULL_STOP, COMMA, QUESTION, EXCLAMATION)
CONSONANTS: tuple[str, ...] = tuple("bdfhjklmnpstvwzðŋɡɹʃʒʤʧθT")
"""24 consonants and `T`, the tapped t in American *butter*."""
VOWELS: tuple[str, ...] = tuple("AIOWYiuæɑɔəɛɜɪʊʌ")
PRIMARY, SECONDARY = "ˈ", "ˌ"
STRESSES: tuple[str, ...] = ("", SECONDARY, PRIMARY)

INVENTORY: tuple[str, ...] = (
    END,
    START_SILENCE,
    END_SILENCE,
    *PAUSES,
    *CONSONANTS,
    *(stress + vowel for vowel in VOWELS for stress in STRESSES),
)
"""All phones, in the id order of the training recipe."""

_FROM_IPA: dict[str, str] = {
    "t͡ʃ": "ʧ",
    "d͡ʒ": "ʤ",
    "g": "ɡ",
    "r": "ɹ",
    "eɪ": "A",
    "aɪ": "I",
    "oʊ": "O",
    "aʊ": "W",
    "ɔɪ": "Y",
}
_RHOTIC = "ɚ"


def is_vowel(phone: str) -> bool:
    """True for a vowel with any stress."""
    return phone[-1] in VOWELS


def stress_of(phone: str) -> str:
    """The stress mark of a phone, "" if it has none."""
    return phone[0] if phone[0] in (PRIMARY, SECONDARY) else ""


def without_stress(phones: Iterable[str]) -> tuple[str, ...]:
    """Remove the stress marks (for function words)."""
    return tuple(phone.lstrip(PRIMARY + SECONDARY) for phone in phones)


def from_ipa(symbols: Iterable[str]) -> tuple[str, ...]:
    """Convert the IPA symbols of one word (``"ˈeɪ"``, ``"t͡ʃ"``, ``"ɚ"``…) to phones.

    A rhotic vowel becomes a vowel and ``ɹ``. Raises `KeyError` for symbols outside the inventory.
    """
    phones: list[str] = []
    for symbol in symbols:
        stress = symbol[0] if symbol[0] in (PRIMARY, SECONDARY) else ""
        base = symbol[len(stress) :]
        if base == _RHOTIC:
            phones += [stress + ("ɜ" if stress else "ə"), "ɹ"]
            continue
        phone = stress + _FROM_IPA.get(base, base)
        if phone not in _KNOWN:
            raise KeyError(symbol)
        phones.append(phone)
    return tap(phones)


def tap(phones: list[str]) -> tuple[str, ...]:
    """Apply American tapping: t after a vowel or r and before an unstressed vowel, but not before *-ən*."""
    tapped = list(phones)
    for i in range(1, len(phones) - 1):
        before, after = phones[i - 1], phones[i + 1]
        if phones[i] != "t" or not (is_vowel(before) or before == "ɹ"):
            continue
        final_n = after == "ə" and phones[i + 2 : i + 3] == ["n"]
        if is_vowel(after) and not stress_of(after) and not final_n:
            tapped[i] = "T"
    return tuple(tapped)


_KNOWN = frozenset(INVENTORY)
