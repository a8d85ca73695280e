"""The aligned text track of the embedded voice: which phones sound in each frame, committed while text still arrives.

Owns one text from its first character to its last token. A token is four phone ids, one for each quarter of a frame.
The commit rule, the same for text given whole and in pieces: a phone's length is final when the `look_ahead` phones
after it are known or the text has ended; boundaries are the rounded running sum of lengths, at least one quarter a
phone; a token is committed when its four quarters are. What stands before it is the normaliser's own look-ahead
(`normalize_en`: two blank-separated pieces, for pieces that may need them). Knows no tensors: the duration net is the
`Durations` that it is given.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from legato.config.model import PhoneTextConfig
from legato.errors import StateError, UnspeakableTextError
from legato.flow import TextToken, WordSpan
from legato.text import phones as ph
from legato.text.english import EnglishPhones, Unit, english_words
from legato.text.g2p_en import EnglishWords

QUARTERS = 4
"""Phone ids in a token, and so quarters of a frame."""
START_QUARTERS = 8
"""Silence before the first phone."""
END_QUARTERS = 8
"""Silence after the last pause, at least; the last frame is filled up with it."""
BLOCK = 16
"""Phones whose durations one call asks for, always at multiples of it: a phone's place in its call never depends on
how the text was cut, so neither does the rounding inside the net."""


class Durations(Protocol):
    """Lengths of phones in quarters of a frame, from a window of phone ids (the end phone fills it past either end)."""

    @property
    def look_behind(self) -> int: ...

    @property
    def look_ahead(self) -> int: ...

    def __call__(self, phones: Sequence[int]) -> Sequence[float]:
        """Lengths of all but the first `look_behind` and the last `look_ahead` phones."""


class EnglishTrack:
    """`TextTrack` for English text. `speed` above 1 shortens every phone."""

    def __init__(
        self,
        config: PhoneTextConfig,
        durations: Durations,
        *,
        speed: float = 1.0,
        words: EnglishWords | None = None,
    ) -> None:
        self._ids = {phone: number for number, phone in enumerate(config.phones)}
        missing = [phone for phone in ph.INVENTORY if phone not in self._ids]
        if missing:
            raise StateError(f"the checkpoint's phone list lacks {' '.join(missing)}")
        if config.tables != QUARTERS:
            raise StateError(
                f"the English front end lays {QUARTERS} phones a token, the checkpoint has {config.tables}"
            )
        self._durations = durations
        self._speed = speed
        self._front = EnglishPhones(words or english_words())
        self._units: list[Unit] = []
        self._phones: list[int] = []
        self._timed = 0
        self._time = float(START_QUARTERS)
        self._quarters = [self._ids[ph.START_SILENCE]] * START_QUARTERS
        self._tokens: list[TextToken] = []
        self._words: list[WordSpan] = []
        self._open_word: WordSpan | None = None
        self._ended = False

    def append(self, text: str) -> None:
        """Take the next piece of text, cut anywhere."""
        if self._ended:
            raise StateError("text was appended to a track that has ended")
        self._add(self._front.push(text))

    def end(self) -> None:
        """No more text will come. `UnspeakableTextError` when nothing in it could be spoken."""
        if self._ended:
            raise StateError("the track was ended twice")
        self._ended = True
        units = self._front.finish()
        if not self._units and not units:
            raise UnspeakableTextError(_nothing_to_say(self._front.unspeakable), field="text")
        self._add(units)
        self._close_word()
        silence = END_QUARTERS + -(len(self._quarters) + END_QUARTERS) % QUARTERS
        self._quarters += [self._ids[ph.END_SILENCE]] * silence
        self._commit()

    @property
    def tokens(self) -> Sequence[TextToken]:
        """All tokens committed so far; none before the first phone's length is final."""
        return self._tokens

    @property
    def ended(self) -> bool:
        """True once `end` was called."""
        return self._ended

    @property
    def words(self) -> Sequence[WordSpan]:
        """Words whose times are final. Words read from one written form (`$12.50`) are one span."""
        return self._words

    def _add(self, units: list[Unit]) -> None:
        self._units += units
        self._phones += [self._ids[unit.phone] for unit in units]
        known = len(self._phones) - (0 if self._ended else self._durations.look_ahead)
        if known <= self._timed:
            return
        while self._timed < known:
            block = self._timed // BLOCK * BLOCK
            lengths = self._durations(self._window(block))
            for index in range(self._timed, min(known, block + BLOCK)):
                self._lay(index, lengths[index - block])
            self._timed = min(known, block + BLOCK)
        self._commit()

    def _window(self, block: int) -> list[int]:
        """Phone ids from `look_behind` before the block to `look_ahead` after it."""
        filler = self._ids[ph.END]
        low, high = block - self._durations.look_behind, block + BLOCK + self._durations.look_ahead
        inside = self._phones[max(0, low) : high]
        return [filler] * max(0, -low) + inside + [filler] * (high - max(0, low) - len(inside))

    def _lay(self, index: int, length: float) -> None:
        """Give phone `index` its quarters."""
        start = len(self._quarters)
        self._time += length / self._speed
        end = max(round(self._time), start + 1)
        self._quarters += [self._phones[index]] * (end - start)
        word = self._units[index].word
        if word < 0:
            return
        spoken = self._front.spoken[word]
        open_word = self._open_word
        if open_word is None or (open_word.text_start, open_word.text_end) != (spoken.start, spoken.end):
            self._close_word()
            open_word = WordSpan(spoken.start, spoken.end, start / QUARTERS, end / QUARTERS)
        self._open_word = WordSpan(spoken.start, spoken.end, open_word.start_frame, end / QUARTERS)

    def _close_word(self) -> None:
        if self._open_word is not None:
            self._words.append(self._open_word)
            self._open_word = None

    def _commit(self) -> None:
        for start in range(len(self._tokens) * QUARTERS, len(self._quarters) - QUARTERS + 1, QUARTERS):
            self._tokens.append(tuple(self._quarters[start : start + QUARTERS]))


def _nothing_to_say(unspeakable: Sequence[str]) -> str:
    if unspeakable:
        return f"the English voice cannot speak the letters {' '.join(unspeakable)}: give it English text"
    return "the text has no letter or digit that could be spoken"
