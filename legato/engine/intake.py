"""The text of one stream on its way in: pieces from the client, segments, a sequence for each.

Owns the segmenter of one stream, for as long as text may come. Host values only; a track may call the duration net
through the port it was given. It knows no slot and no frame.
"""

from __future__ import annotations

from collections.abc import Callable

from legato.engine.sequence import Sequence
from legato.errors import StateError, UnspeakableTextError
from legato.text.characters import is_speakable
from legato.text.segment import Segmenter, SegmentPiece


class TextIntake:
    """Turns pieces of text into sequences with their tracks. `new_sequence` makes the one with the given number."""

    def __init__(self, segmenter: Segmenter, new_sequence: Callable[[int], Sequence]) -> None:
        self._segmenter = segmenter
        self._new_sequence = new_sequence
        self.sequences: list[Sequence] = []
        self.ended = False
        self._shut = False
        self._speakable = False

    def append(self, text: str) -> None:
        """Take the next piece of the client's text."""
        if self._shut:
            return
        if self.ended:
            raise StateError("text was appended after the end of the text")
        self._speakable = self._speakable or any(map(is_speakable, text))
        self._take(self._segmenter.append(text))

    def end(self) -> None:
        """No more text. Ending twice is no error, because a client may close a stream that it has ended."""
        if self.ended:
            return
        self.ended = True
        if not self._speakable:
            raise UnspeakableTextError(
                "the text has nothing to speak: give at least one word, digit or letter", field="text"
            )
        self._take(self._segmenter.end())

    def shut(self) -> None:
        """The stream will speak nothing more: whatever text still comes is dropped."""
        self.ended = self._shut = True

    def _take(self, pieces: list[SegmentPiece]) -> None:
        for piece in pieces:
            while len(self.sequences) <= piece.segment:
                self.sequences.append(self._new_sequence(len(self.sequences)))
            sequence = self.sequences[piece.segment]
            if piece.text:
                sequence.text.append(piece.text)
                sequence.track.append(piece.text)
            if piece.closes:
                sequence.track.end()
