"""English text to spoken words and pauses, incrementally: our own rules over pieces, with a stated look-ahead.

Owns the pieces that wait for their look-ahead, and the pause that waits to know whether it grows. A piece is read when
it is complete (a blank follows) and, if its reading may need them (a digit, a symbol, an abbreviation, a month), when
`LOOK_AHEAD` further pieces are complete too. What comes out depends on the text alone, not on how it was cut. Every
word keeps the span of the text that it was read from. Knows no phones and no times.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

from legato.text import tables_en as tab
from legato.text.reading_en import LOOK_AHEAD, Context, Reading
from legato.text.rules_en import read
from legato.text.scan import Piece, Scanner

_OPENING = "([{\"'*_~|"
_CLOSING = ".,!?;:)]}\"'*_~|…—–™®©"
_PLAIN_WORD = re.compile(r"[A-Za-z]+(?:['-][A-Za-z]+)*'?")
_STRENGTH = {"": 0, ",": 1, ".": 2, "!": 3, "?": 4}
_ADDRESS = re.compile(
    rf"(?P<email>[\w.+-]+@[\w-]+(?:\.[\w-]+)+)|(?:https?://|www\.)\S+|(?:[\w-]+\.)+(?:{tab.TOP_DOMAINS})(?:/\S*)?",
    re.ASCII,
)
_PART = re.compile(r"[A-Za-z]+(?:['-][A-Za-z]+)*'?|[\d.,]*\d|[+-](?=\d)|\s+|—|–|…|\.{2,}|.", re.DOTALL)


_LOOKS_AHEAD = frozenset((*tab.MONTHS, *tab.MONTH_SHORT, *tab.TITLES, *tab.DOTTED, *tab.BEFORE_NUMBER))


@dataclass(frozen=True, slots=True)
class SpokenWord:
    """One word as it is said (see `reading_en`), and the characters of the text that it was read from."""

    text: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Pause:
    """A pause by its mark: one of ``. , ? !``."""

    mark: str


Item = SpokenWord | Pause


class EnglishNormalizer:
    """Text in, cut anywhere; spoken words and pauses out. The last item of a finished text is a sentence's end."""

    def __init__(self) -> None:
        self._scanner = Scanner()
        self._pieces: list[Piece] = []
        self._previous = ""
        self._pause = ""
        self._spoke = False

    @property
    def unspeakable(self) -> tuple[str, ...]:
        """Letters of other scripts that were left out."""
        return tuple(self._scanner.unspeakable)

    def push(self, text: str) -> list[Item]:
        """Take text; give the items that are final now."""
        self._pieces += self._scanner.push(text)
        return self._drain(final=False)

    def finish(self) -> list[Item]:
        """No more text comes: give what is left, ended by a sentence's pause if anything was spoken at all."""
        self._pieces += self._scanner.finish()
        items = self._drain(final=True)
        if self._spoke:
            items.append(Pause(self._pause if _STRENGTH[self._pause] > 1 else "."))
        return items

    def _drain(self, *, final: bool) -> list[Item]:
        items: list[Item] = []
        while self._pieces:
            waits = LOOK_AHEAD if _may_need_more(self._pieces[0].text) else 0
            if not final and len(self._pieces) <= waits:
                break
            used = self._read_piece(self._pieces[0], self._pieces[1 : 1 + LOOK_AHEAD] if waits else (), items)
            del self._pieces[: 1 + used]
        return items

    def _read_piece(self, piece: Piece, following: Sequence[Piece], items: list[Item]) -> int:
        """Read one piece into `items`; returns how many following pieces its reading used up."""
        if piece.new_paragraph:
            self._rest(".")
        if piece.new_line and re.fullmatch(r"#+|[-*+•]|>+|```\w*", piece.text):
            self._rest(".")
            return 0
        low, high = _core_bounds(piece.text)
        if "(" in piece.text[:low]:
            self._rest(",")
        same_paragraph = list(takewhile(lambda p: not p.new_paragraph, following))
        used, eats_stop = self._read_core(piece, low, high, same_paragraph, items)
        last = following[used - 1].text if used else piece.text[high:]
        self._rest_after(last[_core_bounds(last)[1] :] if used else last, eats_stop=eats_stop)
        return used

    def _read_core(
        self, piece: Piece, low: int, high: int, following: list[Piece], items: list[Item]
    ) -> tuple[int, bool]:
        core, trail = piece.text[low:high], piece.text[high:]
        if not core:
            if piece.text in ("-", "–", "—", "--"):
                self._rest(",")
            return 0, False
        in_brackets = piece.text[:low].endswith("(") and trail.startswith(")")
        texts = [p.text for p in following]
        reading = self._reading(core, Context(texts, self._previous, trail.startswith("."), in_brackets))
        if reading is not None:
            last = following[reading.used - 1] if reading.used else piece
            end = _core_bounds(last.text)[1] if reading.used else high
            for word in reading.words:
                self._say(word, piece.offsets[low], last.offsets[end - 1] + 1, items)
            self._previous = core
            return reading.used, reading.eats_stop
        self._read_parts(piece, low, high, items)
        return 0, False

    def _reading(self, core: str, context: Context) -> Reading | None:
        if _ADDRESS.fullmatch(core):
            return Reading(_address(core))
        return read(core, context) or (Reading([core]) if _PLAIN_WORD.fullmatch(core) else None)

    def _read_parts(self, piece: Piece, low: int, high: int, items: list[Item]) -> None:
        """Read a core that no rule knows part by part: words, numbers, symbols, pauses."""
        core = piece.text[low:high]
        for match in _PART.finditer(core):
            part = match[0]
            span = piece.offsets[low + match.start()], piece.offsets[low + match.end() - 1] + 1
            before, after = core[: match.start()], core[match.end() :]
            if _STRENGTH.get(part) or part in ";:()…—–" or part.startswith(".."):
                self._inner_mark(part, before, after, span, items)
            elif part == "-" or (part in "<>" and not before and after):
                continue
            elif part in tab.SYMBOLS:
                for word in tab.SYMBOLS[part].split():
                    self._say(word, *span, items)
            elif part[0].isalnum() or part in "+-":
                words = self._part_words(part, alone=not (before[-1:].isalnum() or after[:1].isalnum()))
                for word in words:
                    self._say(word, *span, items)
        self._previous = core

    def _part_words(self, part: str, *, alone: bool) -> Sequence[str]:
        if part in "+-":
            return ["minus" if part == "-" else "plus"]
        if part[0].isalpha():
            spelled = not alone and (len(part) == 1 or (part.isupper() and len(part) <= 3))
            return [part + "."] if spelled else [part]
        reading = read(part.strip(",."), Context((), self._previous, stopped=False))
        return reading.words if reading else ()

    def _inner_mark(self, mark: str, before: str, after: str, span: tuple[int, int], items: list[Item]) -> None:
        """Punctuation inside a core: a dot between lower-case letters is said, a colon between digits too."""
        if mark == "." and before[-1:].isalnum() and after[:1].isalnum() and not after[:1].isupper():
            self._say("dot", *span, items)
        elif mark == ":" and before[-1:].isdigit() and after[:1].isdigit():
            self._say("to", *span, items)
        elif mark == "–" and before[-1:].isalpha() and after[:1].isalpha():
            return
        else:
            self._rest(mark if mark in _STRENGTH else ("." if mark[0] == "…" and not after else ","))

    def _rest_after(self, trail: str, *, eats_stop: bool) -> None:
        if eats_stop and trail.startswith("."):
            trail = trail[1:]
        for mark in trail:
            if mark in _STRENGTH:
                self._rest(mark)
            elif mark in ";:)—–…":
                self._rest("." if mark == "…" else ",")

    def _rest(self, mark: str) -> None:
        """A pause is due before the next word; of several the strongest is kept."""
        if self._spoke and _STRENGTH[mark] > _STRENGTH[self._pause]:
            self._pause = mark
        if _STRENGTH[mark] > 1:
            self._previous = ""

    def _say(self, word: str, start: int, end: int, items: list[Item]) -> None:
        if word == ",":
            self._rest(",")
            return
        if self._pause:
            items.append(Pause(self._pause))
        self._pause, self._spoke = "", True
        items.append(SpokenWord(word, start, end))


def _core_bounds(text: str) -> tuple[int, int]:
    """Where the core of a piece starts and ends: without opening and closing punctuation and emphasis marks."""
    low, high = 0, len(text)
    while low < high and (
        text[low] in _OPENING or (text[low] in ".,!?;:…—–#" and not text[low + 1 : low + 2].isalnum())
    ):
        low += 1
    while high > low and text[high - 1] in _CLOSING:
        high -= 1
    return low, high


def _may_need_more(text: str) -> bool:
    """False for a plain word, whose reading does not depend on what follows it."""
    low, high = _core_bounds(text)
    core = text[low:high]
    return len(core) == 1 or core.lower() in _LOOKS_AHEAD or not _PLAIN_WORD.fullmatch(core)


def _address(text: str) -> list[str]:
    """An e-mail address or URL: runs of letters as words, digits one by one, its marks by name."""
    text = re.sub(r"^https?://", "", text).rstrip("/")
    words: list[str] = []
    for run in re.findall(r"[A-Za-z]+|\d|.", text):
        if run.isdigit():
            reading = read(run, Context((), "", stopped=False))
            words += reading.words if reading else ()
        elif run.isalpha():
            words.append(run + "." if run.lower() == "www" or len(run) <= 2 else run)
        else:
            words += tab.ADDRESS_SYMBOLS.get(run, "").split()
    return words
