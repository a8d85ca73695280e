"""Characters to blank-separated pieces: drops markup and what cannot be spoken, and remembers where each letter stood.

Owns the undecided tail of the text that came so far: at most `MAX_MARKUP` characters (a tag or a link that may still
close) and the piece that no blank has ended yet. The pieces depend on the text alone, not on how it was cut. Knows no
language; policy on markup: see docs/text.md (marks are taken off, what they mark is read).
"""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass

MAX_MARKUP = 200
"""A tag or the address of a link longer than this is read as text. Also the look-ahead of this stage, in characters."""
MAX_PIECE = 120
"""A piece without blanks is cut after so many characters."""
MAX_NAMED = 20
"""So many letters that cannot be spoken are remembered for the error message."""

_LIKE: dict[str, str] = {
    "’": "'",
    "‘": "'",
    "ʼ": "'",
    "`": "",
    "´": "'",
    "“": '"',
    "”": '"',
    "„": '"',
    "«": '"',
    "»": '"',
    "−": "-",
    "‐": "-",
    "‑": "-",
    "ß": "ss",
    "æ": "ae",
    "Æ": "Ae",
    "œ": "oe",
    "Œ": "Oe",
    "ø": "o",
    "Ø": "O",
    "ł": "l",
    "Ł": "L",
    "đ": "d",
    "Đ": "D",
    "ð": "d",
    "þ": "th",
    "Þ": "Th",
    "ı": "i",
    "，": ",",
    "。": ".",
    "！": "!",
    "？": "?",
    "：": ":",
    "；": ";",
    "（": "(",
    "）": ")",
}
_KEPT_SYMBOLS = frozenset("$€£¥₹%&+=@#/\\<>°§×÷±~^|*_-–—…½¼¾⅓⅔²³™®©µ→")


@dataclass(frozen=True, slots=True)
class Piece:
    """A run of characters without blanks. `offsets[i]` is where character i stood in the text.

    `new_line`: it is the first of its line. `new_paragraph`: an empty line stands before it.
    """

    text: str
    offsets: tuple[int, ...]
    new_line: bool
    new_paragraph: bool


class Scanner:
    """Text in, cut anywhere; pieces out."""

    def __init__(self) -> None:
        self._held = ""
        self._held_at = 0
        self._letters: list[str] = []
        self._offsets: list[int] = []
        self._breaks = 1
        self.unspeakable: dict[str, None] = {}
        """Letters of other scripts that were left out, in order of appearance (the first `MAX_NAMED`)."""

    def push(self, text: str) -> list[Piece]:
        """Take text; give the pieces that are complete now."""
        self._held += text
        return self._scan(final=False)

    def finish(self) -> list[Piece]:
        """No more text comes: give what is left."""
        pieces = self._scan(final=True)
        if self._letters:
            pieces.append(self._cut())
        return pieces

    def _scan(self, *, final: bool) -> list[Piece]:
        pieces: list[Piece] = []
        text, i = self._held, 0
        while i < len(text):
            skip = _markup_length(text, i, final=final)
            if skip is None:
                break
            if skip:
                i += skip
                continue
            character = text[i]
            plain = self._plain(character)
            if plain == " ":
                if self._letters:
                    pieces.append(self._cut())
                self._breaks += character == "\n"
            for letter in plain.strip():
                self._letters.append(letter)
                self._offsets.append(self._held_at + i)
            if len(self._letters) >= MAX_PIECE:
                pieces.append(self._cut())
            i += 1
        self._held = text[i:]
        self._held_at += i
        return pieces

    def _cut(self) -> Piece:
        piece = Piece("".join(self._letters), tuple(self._offsets), self._breaks > 0, self._breaks > 1)
        self._letters, self._offsets, self._breaks = [], [], 0
        return piece

    def _plain(self, character: str) -> str:
        """What stands for a character in the front end: itself, its plain form, a blank, or nothing."""
        if character.isspace():
            return " "
        if character in _LIKE:
            return _LIKE[character]
        if character.isascii():
            return character if character.isprintable() else ""
        if character in _KEPT_SYMBOLS:
            return character
        decomposed = [c for c in unicodedata.normalize("NFKD", character) if not unicodedata.combining(c)]
        plain = "".join(c for c in decomposed if c == "°" or (c.isascii() and c.isprintable() and c != " "))
        if plain:
            return plain
        if character.isalpha() and len(self.unspeakable) < MAX_NAMED:
            self.unspeakable[character] = None
        return " " if character.isalpha() or unicodedata.category(character) in ("So", "Co", "Cn") else ""


def _markup_length(text: str, i: int, *, final: bool) -> int | None:
    """Characters of markup that start at i: 0 for none, None where more text is needed to know.

    Markup is a tag ``<name …>`` or ``</name>``, and the ``](address)`` of a link.
    """
    if text[i] not in "<]":
        return 0
    if i + 1 == len(text):
        return 0 if final else None
    following = text[i + 1]
    is_tag = text[i] == "<" and ((following.isascii() and following.isalpha()) or following == "/")
    is_link = text[i] == "]" and following == "("
    if not (is_tag or is_link):
        return 0
    for j in range(i + 2, min(len(text), i + MAX_MARKUP)):
        if text[j] == (">" if is_tag else ")"):
            return j + 1 - i
        if text[j] in ("<" if is_tag else "\n"):
            return 0
    complete = final or len(text) >= i + MAX_MARKUP
    return 0 if complete else None
