"""Incremental English text normalization: text to spoken words and pauses.

Rules work on pieces, the parts of the text between white space. A piece is normalized when it is complete, which means
that white space follows. A piece that may depend on its context (a digit, a symbol, an abbreviation, a month) also
needs the next `LOOK_AHEAD` pieces. The output depends only on the text, not on how it was split. Each output word has
its character span in the text. An `EnglishNormalizer` holds the pending pieces and the pending pause of one text.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

from legato.text.english import tables as tab
from legato.text.english.reading import LOOK_AHEAD, Context, Reading
from legato.text.english.rules import read
from legato.text.english.scanner import Piece, Scanner

_OPENING = "([{\"'*_~|"
_CLOSING = ".,!?;:)]}\"'*_~|…—–™®©"
_PLAIN_WORD = re.compile(r"[A-Za-z]+(?:['-][A-Za-z]+)*'?")
_PAUSE_STRENGTH = {"": 0, ",": 1, ".": 2, "!": 3, "?": 4}
_ADDRESS = re.compile(
    rf"(?P<email>[\w.+-]+@[\w-]+(?:\.[\w-]+)+)|(?:https?://|www\.)\S+|(?:[\w-]+\.)+(?:{tab.TOP_DOMAINS})(?:/\S*)?",
    re.ASCII,
)
_PART = re.compile(r"[A-Za-z]+(?:['-][A-Za-z]+)*'?|[\d.,]*\d|[+-](?=\d)|\s+|—|–|…|\.{2,}|.", re.DOTALL)


_LOOK_AHEAD_WORDS = frozenset((*tab.MONTHS, *tab.MONTH_SHORT, *tab.TITLES, *tab.DOTTED, *tab.BEFORE_NUMBER))


@dataclass(frozen=True, slots=True)
class NormalizedWord:
    """One spoken word (format: see `reading.py`) and its character span in the text."""

    text: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Pause:
    """A pause, given by its punctuation mark: one of ``. , ? !``."""

    mark: str


Item = NormalizedWord | Pause


class EnglishNormalizer:
    """Converts streamed text, split anywhere, to words and pauses. A finished text ends with a sentence pause."""

    def __init__(self) -> None:
        self._scanner = Scanner()
        self._pieces: list[Piece] = []
        self._previous = ""
        self._pending_pause = ""
        self._has_output = False

    @property
    def unspeakable(self) -> tuple[str, ...]:
        """Letters of other scripts that were skipped."""
        return tuple(self._scanner.unspeakable)

    def push(self, text: str) -> list[Item]:
        """Add text and return the items that are now final."""
        self._pieces += self._scanner.push(text)
        return self._drain(final=False)

    def finish(self) -> list[Item]:
        """End the text and return the remaining items. They end with a sentence pause if there was a word."""
        self._pieces += self._scanner.finish()
        items = self._drain(final=True)
        if self._has_output:
            items.append(Pause(self._pending_pause if _PAUSE_STRENGTH[self._pending_pause] > 1 else "."))
        return items

    def _drain(self, *, final: bool) -> list[Item]:
        items: list[Item] = []
        while self._pieces:
            look_ahead = LOOK_AHEAD if _needs_look_ahead(self._pieces[0].text) else 0
            if not final and len(self._pieces) <= look_ahead:
                break
            used = self._read_piece(self._pieces[0], self._pieces[1 : 1 + LOOK_AHEAD] if look_ahead else (), items)
            del self._pieces[: 1 + used]
        return items

    def _read_piece(self, piece: Piece, following: Sequence[Piece], items: list[Item]) -> int:
        """Normalize one piece into `items`. Returns how many of the following pieces were consumed with it."""
        if piece.new_paragraph:
            self._request_pause(".")
        if piece.new_line and re.fullmatch(r"#+|[-*+•]|>+|```\w*", piece.text):
            self._request_pause(".")
            return 0
        low, high = _core_bounds(piece.text)
        if "(" in piece.text[:low]:
            self._request_pause(",")
        # A reading must not extend into the next paragraph.
        same_paragraph = list(takewhile(lambda p: not p.new_paragraph, following))
        used, consumes_stop = self._read_core(piece, low, high, same_paragraph, items)
        if used:  # the closing punctuation is that of the last consumed piece
            last = following[used - 1].text
            trail = last[_core_bounds(last)[1] :]
        else:
            trail = piece.text[high:]
        self._request_pauses(trail, consumes_stop=consumes_stop)
        return used

    def _read_core(
        self, piece: Piece, low: int, high: int, following: list[Piece], items: list[Item]
    ) -> tuple[int, bool]:
        """Normalize the core `piece.text[low:high]`. Returns `Reading.used` and `Reading.consumes_stop`."""
        core, trail = piece.text[low:high], piece.text[high:]
        if not core:
            if piece.text in ("-", "–", "—", "--"):
                self._request_pause(",")
            return 0, False
        in_brackets = piece.text[:low].endswith("(") and trail.startswith(")")
        texts = [p.text for p in following]
        reading = self._reading(core, Context(texts, self._previous, trail.startswith("."), in_brackets))
        if reading is not None:
            last = following[reading.used - 1] if reading.used else piece
            end = _core_bounds(last.text)[1] if reading.used else high
            for word in reading.words:
                self._add_word(word, piece.offsets[low], last.offsets[end - 1] + 1, items)
            self._previous = core
            return reading.used, reading.consumes_stop
        self._read_parts(piece, low, high, items)
        return 0, False

    def _reading(self, core: str, context: Context) -> Reading | None:
        if _ADDRESS.fullmatch(core):
            return Reading(_read_address(core))
        return read(core, context) or (Reading([core]) if _PLAIN_WORD.fullmatch(core) else None)

    def _read_parts(self, piece: Piece, low: int, high: int, items: list[Item]) -> None:
        """Normalize a core that no rule matches, part by part: words, numbers, symbols, pauses."""
        core = piece.text[low:high]
        for match in _PART.finditer(core):
            part = match[0]
            span = piece.offsets[low + match.start()], piece.offsets[low + match.end() - 1] + 1
            before, after = core[: match.start()], core[match.end() :]
            if _PAUSE_STRENGTH.get(part) or part in ";:()…—–" or part.startswith(".."):
                self._inner_mark(part, before, after, span, items)
            elif part == "-" or (part in "<>" and not before and after):
                continue
            elif part in tab.SYMBOLS:
                for word in tab.SYMBOLS[part].split():
                    self._add_word(word, *span, items)
            elif part[0].isalnum() or part in "+-":
                words = self._part_words(part, isolated=not (before[-1:].isalnum() or after[:1].isalnum()))
                for word in words:
                    self._add_word(word, *span, items)
        self._previous = core

    def _part_words(self, part: str, *, isolated: bool) -> Sequence[str]:
        if part in "+-":
            return ["minus" if part == "-" else "plus"]
        if part[0].isalpha():
            spelled = not isolated and (len(part) == 1 or (part.isupper() and len(part) <= 3))
            return [part + "."] if spelled else [part]
        reading = read(part.strip(",."), Context((), self._previous, followed_by_stop=False))
        return reading.words if reading else ()

    def _inner_mark(self, mark: str, before: str, after: str, span: tuple[int, int], items: list[Item]) -> None:
        """Punctuation inside a core: a dot between lower-case letters and a colon between digits are spoken."""
        if mark == "." and before[-1:].isalnum() and after[:1].isalnum() and not after[:1].isupper():
            self._add_word("dot", *span, items)
        elif mark == ":" and before[-1:].isdigit() and after[:1].isdigit():
            self._add_word("to", *span, items)
        elif mark == "–" and before[-1:].isalpha() and after[:1].isalpha():
            return
        elif mark in _PAUSE_STRENGTH:
            self._request_pause(mark)
        else:
            self._request_pause("." if mark[0] == "…" and not after else ",")

    def _request_pauses(self, trail: str, *, consumes_stop: bool) -> None:
        """Insert the pauses of the closing punctuation `trail`."""
        if consumes_stop and trail.startswith("."):
            trail = trail[1:]
        for mark in trail:
            if mark in _PAUSE_STRENGTH:
                self._request_pause(mark)
            elif mark in ";:)—–…":
                self._request_pause("." if mark == "…" else ",")

    def _request_pause(self, mark: str) -> None:
        """Insert a pause before the next word. Of several pauses the strongest is kept."""
        if self._has_output and _PAUSE_STRENGTH[mark] > _PAUSE_STRENGTH[self._pending_pause]:
            self._pending_pause = mark
        if _PAUSE_STRENGTH[mark] > 1:
            self._previous = ""  # no context across sentences

    def _add_word(self, word: str, start: int, end: int, items: list[Item]) -> None:
        if word == ",":  # a pause inside a reading
            self._request_pause(",")
            return
        if self._pending_pause:
            items.append(Pause(self._pending_pause))
        self._pending_pause, self._has_output = "", True
        items.append(NormalizedWord(word, start, end))


def _core_bounds(text: str) -> tuple[int, int]:
    """Start and end of the core: the piece without surrounding punctuation and emphasis marks."""
    low, high = 0, len(text)
    while low < high and (
        text[low] in _OPENING or (text[low] in ".,!?;:…—–#" and not text[low + 1 : low + 2].isalnum())
    ):
        low += 1
    while high > low and text[high - 1] in _CLOSING:
        high -= 1
    return low, high


def _needs_look_ahead(text: str) -> bool:
    """True unless the piece is a plain word, which does not depend on the following text."""
    low, high = _core_bounds(text)
    core = text[low:high]
    return len(core) == 1 or core.lower() in _LOOK_AHEAD_WORDS or not _PLAIN_WORD.fullmatch(core)


def _read_address(text: str) -> list[str]:
    """Words of an e-mail address or URL: letter runs as words, digits one by one, punctuation by name."""
    text = re.sub(r"^https?://", "", text).rstrip("/")
    words: list[str] = []
    for run in re.findall(r"[A-Za-z]+|\d|.", text):
        if run.isdigit():
            reading = read(run, Context((), "", followed_by_stop=False))
            words += reading.words if reading else ()
        elif run.isalpha():
            words.append(run + "." if run.lower() == "www" or len(run) <= 2 else run)
        else:
            words += tab.ADDRESS_SYMBOLS.get(run, "").split()
    return words
