"""Input of the teacher: phones of our front end as a Kokoro phoneme string.

Training and inference use the same front end, so they see the same phones.
"""

from __future__ import annotations

from legato.text.english.frontend import EnglishPhones, english_g2p


def kokoro_input(text: str) -> str:
    """Phoneme string of a text: spaces between words, pause marks attached to the previous word."""
    track = EnglishPhones(english_g2p())
    units = track.push(text) + track.finish()
    written = ""
    previous = None
    for unit in units:
        if unit.word >= 0 and unit.word != previous and written:
            written += " "
        written += unit.phone
        previous = unit.word
    return written
