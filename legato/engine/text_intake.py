"""Text intake of one stream: buffers the client's text, segments it, and creates a sequence for each segment.

Owned by the stream. `append` only buffers; `process` segments and tokenizes (for the embedded voice also phonemes and
durations). Each engine step processes a few small pieces, so that a long text does not delay other streams.
"""

from __future__ import annotations

from collections.abc import Callable

from legato.engine.sequence import Sequence
from legato.errors import StateError, UnspeakableTextError
from legato.text.characters import is_speakable
from legato.text.segmenter import Segmenter, SegmentPiece

PIECE_CHARS = 64
"""Characters processed per call: about 2 ms with the phoneme front end, 0.2 ms with BPE."""


class TextIntake:
    """Converts text to sequences and feeds their tokenizers. `new_sequence(number)` creates one sequence."""

    def __init__(self, segmenter: Segmenter, new_sequence: Callable[[int], Sequence]) -> None:
        self._segmenter = segmenter
        self._new_sequence = new_sequence
        self.sequences: list[Sequence] = []
        self.ended = False
        """True once the text is complete and processed."""
        self._unread = ""
        self._complete = False
        self._ignoring_text = False
        self._speakable = False

    def append(self, text: str) -> None:
        """Buffer more text."""
        if self._ignoring_text:
            return
        if self._complete:
            raise StateError("text was appended after the end of the text")
        self._unread += text

    def end(self) -> None:
        """Mark the end of the text. Repeated calls are allowed: a client may close a stream that it already ended."""
        self._complete = True

    def seal(self) -> None:
        """End the text: buffered text is still processed, later text is ignored."""
        self._complete = self._ignoring_text = True

    def discard(self) -> None:
        """End the text and drop the buffered text."""
        self.seal()
        self._unread = ""
        self.ended = True

    @property
    def has_work(self) -> bool:
        """True while `process` has something to do."""
        return bool(self._unread) or (self._complete and not self.ended)

    def process(self) -> None:
        """Process one piece of text. At the end, raises `UnspeakableTextError` if the text has nothing to speak."""
        if self._unread:
            text, self._unread = self._unread[:PIECE_CHARS], self._unread[PIECE_CHARS:]
            self._speakable = self._speakable or any(map(is_speakable, text))
            self._add(self._segmenter.append(text))
        if self._complete and not self._unread and not self.ended:
            self.ended = True
            if not self._speakable:
                raise UnspeakableTextError(
                    "the text contains nothing to speak: it needs at least one letter or digit", field="text"
                )
            self._add(self._segmenter.end())

    def _add(self, pieces: list[SegmentPiece]) -> None:
        for piece in pieces:
            while len(self.sequences) <= piece.segment:
                self.sequences.append(self._new_sequence(len(self.sequences)))
            sequence = self.sequences[piece.segment]
            if piece.text:
                sequence.append_text(piece.text)
            if piece.closes:
                sequence.tokenizer.end()
