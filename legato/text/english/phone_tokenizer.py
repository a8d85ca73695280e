"""Incremental tokenizer of the embedded voice: assigns phones to frames while text is still arriving.

A `PhoneTokenizer` holds one text. A token has four phone ids, one for each quarter of a frame. The rules for committing
tokens are the same for whole and streamed text:
- The duration of a phone is final when the next `look_ahead` phones are known or the text has ended.
- Phone boundaries are the rounded cumulative durations, with at least one quarter per phone.
- A token is committed when its four quarters are known.
The normalizer has a look-ahead of its own (two pieces, for pieces that depend on context). This module has no tensors;
the duration model is passed in as `Durations`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from legato.config.model import PhoneTextConfig
from legato.errors import StateError, UnspeakableTextError
from legato.text.english import phones as ph
from legato.text.english.frontend import EnglishPhones, Unit, english_g2p
from legato.types import TextToken, WordSpan

QUARTERS = 4
"""Phone ids per token: one for each quarter of a frame."""
START_QUARTERS = 8
"""Silence before the first phone."""
END_QUARTERS = 8
"""Minimum silence after the last pause. The last frame is padded with silence."""
BLOCK_PHONES = 16
"""Phones per call of the duration model. Blocks start at multiples of it. The position of a phone in its block, and
therefore floating-point rounding, does not depend on how the text was split."""


class Durations(Protocol):
    """Duration model: phone durations in quarters of a frame, from a window of phone ids padded with the end phone."""

    @property
    def look_behind(self) -> int: ...

    @property
    def look_ahead(self) -> int: ...

    def __call__(self, phones: Sequence[int]) -> Sequence[float]:
        """Durations of all phones except the first `look_behind` and the last `look_ahead`."""


class PhoneTokenizer:
    """`IncrementalTokenizer` for English text. `speed` above 1 shortens all phones."""

    def __init__(
        self,
        config: PhoneTextConfig,
        durations: Durations,
        *,
        speed: float = 1.0,
    ) -> None:
        self._ids = {phone: phone_id for phone_id, phone in enumerate(config.phones)}
        missing = [phone for phone in ph.INVENTORY if phone not in self._ids]
        if missing:
            raise StateError(f"phones missing from the checkpoint's phone list: {' '.join(missing)}")
        if config.tables != QUARTERS:
            raise StateError(f"text_track.tables is {config.tables}, but the English front end needs {QUARTERS}")
        self._durations = durations
        self._speed = speed
        self._front_end = EnglishPhones(english_g2p())
        self._units: list[Unit] = []
        self._phones: list[int] = []  # ids of `_units`
        self._num_timed = 0  # phones with a final duration
        self._time = float(START_QUARTERS)  # unrounded end of the last timed phone, in quarters
        self._quarters = [self._ids[ph.START_SILENCE]] * START_QUARTERS  # one phone id per quarter
        self._tokens: list[TextToken] = []
        self._words: list[WordSpan] = []
        self._open_word: WordSpan | None = None  # last word, which the next phone may extend
        self._ended = False

    def append(self, text: str) -> None:
        """Add text, split anywhere."""
        if self._ended:
            raise StateError("append() called after end() on a tokenizer")
        self._add(self._front_end.push(text))

    def end(self) -> None:
        """End the text. Raises `UnspeakableTextError` if it contains nothing that can be spoken."""
        if self._ended:
            raise StateError("end() called twice on a tokenizer")
        self._ended = True
        units = self._front_end.finish()
        if not self._units and not units:
            raise UnspeakableTextError(_unspeakable_message(self._front_end.unspeakable), field="text")
        self._add(units)
        self._close_word()
        padding = -(len(self._quarters) + END_QUARTERS) % QUARTERS  # fills up the last frame
        self._quarters += [self._ids[ph.END_SILENCE]] * (END_QUARTERS + padding)
        self._commit()

    @property
    def tokens(self) -> Sequence[TextToken]:
        """All tokens committed so far; empty until the duration of the first phone is final."""
        return self._tokens

    @property
    def ended(self) -> bool:
        """True once `end` was called."""
        return self._ended

    @property
    def words(self) -> Sequence[WordSpan]:
        """Words with final times. All spoken words of one written form (`$12.50`) are one entry."""
        return self._words

    def _add(self, units: list[Unit]) -> None:
        """Add phones, and assign those with a final duration to frames."""
        self._units += units
        self._phones += [self._ids[unit.phone] for unit in units]
        num_final = len(self._phones)
        if not self._ended:
            num_final -= self._durations.look_ahead
        if num_final <= self._num_timed:
            return
        while self._num_timed < num_final:
            # A block whose phones were not all final is computed again, at the same position.
            block = self._num_timed // BLOCK_PHONES * BLOCK_PHONES
            durations = self._durations(self._window(block))
            block_end = min(num_final, block + BLOCK_PHONES)
            for index in range(self._num_timed, block_end):
                self._place_phone(index, durations[index - block])
            self._num_timed = block_end
        self._commit()

    def _window(self, block: int) -> list[int]:
        """Phone ids of a block with `look_behind` phones before and `look_ahead` phones after it."""
        padding = self._ids[ph.END]
        start = block - self._durations.look_behind
        end = block + BLOCK_PHONES + self._durations.look_ahead
        phones = self._phones[max(0, start) : end]
        left = max(0, -start)
        return [padding] * left + phones + [padding] * (end - start - left - len(phones))

    def _place_phone(self, index: int, duration: float) -> None:
        """Append the quarters of phone `index` and extend the open word."""
        start = len(self._quarters)
        self._time += duration / self._speed
        end = max(round(self._time), start + 1)
        self._quarters += [self._phones[index]] * (end - start)
        word = self._units[index].word
        if word < 0:
            return
        spoken = self._front_end.spoken[word]
        open_word = self._open_word
        if open_word is not None and (open_word.text_start, open_word.text_end) == (spoken.start, spoken.end):
            start_frame = open_word.start_frame
        else:
            self._close_word()
            start_frame = start / QUARTERS
        self._open_word = WordSpan(spoken.start, spoken.end, start_frame, end / QUARTERS)

    def _close_word(self) -> None:
        if self._open_word is not None:
            self._words.append(self._open_word)
            self._open_word = None

    def _commit(self) -> None:
        """Append a token for every complete frame."""
        for start in range(len(self._tokens) * QUARTERS, len(self._quarters) - QUARTERS + 1, QUARTERS):
            self._tokens.append(tuple(self._quarters[start : start + QUARTERS]))


def _unspeakable_message(unspeakable: Sequence[str]) -> str:
    if unspeakable:
        return f"the English voice cannot speak the letters {' '.join(unspeakable)}: use English text"
    return "the text has no letter or digit that can be spoken"
