"""What the teacher is asked to say: our own front end's phones in the alphabet of Kokoro.

Training and use agree because both see the same phones. Owns nothing.
"""

from __future__ import annotations

from legato.text.english import EnglishPhones, english_words


def kokoro_input(text: str) -> str:
    """The string that the teacher speaks: phones of a word run together, blanks between words, marks attached."""
    track = EnglishPhones(english_words())
    units = track.push(text) + track.finish()
    written = ""
    previous = None
    for unit in units:
        if unit.word >= 0 and unit.word != previous and written:
            written += " "
        written += unit.phone
        previous = unit.word
    return written
