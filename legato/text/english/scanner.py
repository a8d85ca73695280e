"""Split streamed text at white space into pieces. Markup and unspeakable characters are removed; offsets are kept.

A `Scanner` holds the incomplete end of one text: the current piece, and at most `MAX_MARKUP_CHARS` characters of a tag
or link that is not closed yet. The pieces depend only on the text, not on how it was split. Markup policy
(docs/text.md): tags and link addresses are removed, the text inside them is kept.
"""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass

MAX_MARKUP_CHARS = 200
"""A longer tag or link address is treated as text. This is also the look-ahead of the scanner, in characters."""
MAX_PIECE_CHARS = 120
"""Longer pieces are split."""
MAX_REPORTED_LETTERS = 20
"""Maximum number of unspeakable letters listed in the error message."""

_REPLACEMENTS: dict[str, str] = {
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
    """A run of characters without white space. `offsets[i]` is the offset of character i in the text.

    `new_line`: first piece of its line. `new_paragraph`: an empty line precedes it.
    """

    text: str
    offsets: tuple[int, ...]
    new_line: bool
    new_paragraph: bool


class Scanner:
    """Converts streamed text, split anywhere, to pieces."""

    def __init__(self) -> None:
        self._pending = ""
        self._pending_offset = 0
        self._letters: list[str] = []
        self._offsets: list[int] = []
        self._breaks = 1
        self.unspeakable: dict[str, None] = {}
        """Skipped letters of other scripts, in order of appearance (the first `MAX_REPORTED_LETTERS`)."""

    def push(self, text: str) -> list[Piece]:
        """Add text and return the pieces that are now complete."""
        self._pending += text
        return self._scan(final=False)

    def finish(self) -> list[Piece]:
        """End the text and return the remaining pieces."""
        pieces = self._scan(final=True)
        if self._letters:
            pieces.append(self._take_piece())
        return pieces

    def _scan(self, *, final: bool) -> list[Piece]:
        pieces: list[Piece] = []
        text, i = self._pending, 0
        while i < len(text):
            skip = _markup_length(text, i, final=final)
            if skip is None:
                break
            if skip:
                i += skip
                continue
            character = text[i]
            plain = self._to_plain(character)
            if plain == " ":
                if self._letters:
                    pieces.append(self._take_piece())
                self._breaks += character == "\n"
            for letter in plain.strip():
                self._letters.append(letter)
                self._offsets.append(self._pending_offset + i)
            if len(self._letters) >= MAX_PIECE_CHARS:
                pieces.append(self._take_piece())
            i += 1
        self._pending = text[i:]
        self._pending_offset += i
        return pieces

    def _take_piece(self) -> Piece:
        piece = Piece("".join(self._letters), tuple(self._offsets), self._breaks > 0, self._breaks > 1)
        self._letters, self._offsets, self._breaks = [], [], 0
        return piece

    def _to_plain(self, character: str) -> str:
        """Replacement for a character: itself, its plain form, a space, or "" if it is dropped."""
        if character.isspace():
            return " "
        if character in _REPLACEMENTS:
            return _REPLACEMENTS[character]
        if character.isascii():
            return character if character.isprintable() else ""
        if character in _KEPT_SYMBOLS:
            return character
        decomposed = [c for c in unicodedata.normalize("NFKD", character) if not unicodedata.combining(c)]
        plain = "".join(c for c in decomposed if c == "°" or (c.isascii() and c.isprintable() and c != " "))
        if plain:
            return plain
        if character.isalpha() and len(self.unspeakable) < MAX_REPORTED_LETTERS:
            self.unspeakable[character] = None
        return " " if character.isalpha() or unicodedata.category(character) in ("So", "Co", "Cn") else ""


def _markup_length(text: str, i: int, *, final: bool) -> int | None:
    """Length of the markup that starts at i: 0 for none, `None` if more text is needed to decide.

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
    for j in range(i + 2, min(len(text), i + MAX_MARKUP_CHARS)):
        if text[j] == (">" if is_tag else ")"):
            return j + 1 - i
        if text[j] in ("<" if is_tag else "\n"):
            return 0
    complete = final or len(text) >= i + MAX_MARKUP_CHARS
    return 0 if complete else None
