"""Where the words of a stream stand in its sound, as far as its front end has laid them down. Owns nothing.

Reads host values that only ever grow (words of a track, counts of frames), so any thread may ask while the engine
works. A sequence's words have a place in the stream once all earlier sequences have ended: until then they are left
out, never guessed.
"""

from __future__ import annotations

from collections.abc import Iterable

from legato.engine.sequence import Sequence
from legato.flow import SpokenWord


def spoken_words(sequences: Iterable[Sequence], frame_samples: int) -> list[SpokenWord]:
    """The words known by now, in order; empty where the front end knows none."""
    words: list[SpokenWord] = []
    frames, characters = 0, 0
    for sequence in sequences:
        ended = sequence.has_ended  # before its words and frames are read: then they are final
        for word in tuple(sequence.track.words):
            words.append(
                SpokenWord(
                    characters + word.text_start,
                    characters + word.text_end,
                    round((frames + word.start_frame) * frame_samples),
                    round((frames + word.end_frame) * frame_samples),
                )
            )
        if not ended:
            break
        frames += sequence.frames
        characters += sequence.characters
    return words
