"""What the teacher did when: its phoneme string and unit durations -> phones of our inventory with their lengths.

The teacher also gives time to stress marks and blanks. A mark's time goes to its vowel; a blank's is split between its
neighbours, all of it to a pause mark where one stands before. Owns nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from legato.text.phones import INVENTORY, PRIMARY, SECONDARY, VOWELS

UNIT_SAMPLES = 600
QUARTER_SAMPLES = 480
_SAME: dict[str, str] = {
    "ᵊ": "ə",
    "ᵻ": "ɪ",
    ";": ",",
    ":": ",",
    "—": ",",
    "…": ".",
    "ɾ": "T",
    "o": "O",
    "a": "ɑ",
    "e": "ɛ",
}
_PHONE_IDS = {phone: index for index, phone in enumerate(INVENTORY)}
_PAUSES = frozenset(".,?!")


@dataclass(frozen=True)
class Aligned:
    """Phone ids (positions in `INVENTORY`) and their lengths in samples, from the first phone to the last mark."""

    ids: tuple[int, ...]
    samples: tuple[float, ...]


def align(phonemes: str, durations_25ms: Sequence[int]) -> Aligned:
    """`durations_25ms`: one number a character of `phonemes`, and one more at each end (left out here).

    An unknown character is a `KeyError`: better no sentence than a wrong one.
    """
    if len(durations_25ms) != len(phonemes) + 2:
        raise ValueError(f"{len(phonemes)} phonemes with {len(durations_25ms)} durations")
    phones: list[str] = []
    units: list[float] = []
    stress, pending = "", 0.0
    for symbol, unit in zip(phonemes, durations_25ms[1:-1], strict=True):
        if symbol == " ":
            share = 1.0 if phones and phones[-1] in _PAUSES else 0.5
            if phones:
                units[-1] += unit * share
                pending += unit * (1.0 - share)
            else:
                pending += unit
            continue
        if symbol in (PRIMARY, SECONDARY):
            stress, pending = symbol, pending + unit
            continue
        phone = _SAME.get(symbol, symbol)
        if phone in VOWELS:
            phone, stress = stress + phone, ""
        if phone not in _PHONE_IDS:
            raise KeyError(symbol)
        phones.append(phone)
        units.append(unit + pending)
        pending = 0.0
    if units:
        units[-1] += pending
    return Aligned(tuple(_PHONE_IDS[p] for p in phones), tuple(u * UNIT_SAMPLES for u in units))


def quarter_track(aligned: Aligned, *, lead_samples: float, frames: int) -> list[tuple[int, int, int, int]]:
    """Text tokens of a sentence whose first phone starts at `lead_samples`: four phone ids a frame, `frames` of them.

    Boundaries by cumulative rounding with at least one quarter a phone: the rule of the run-time track.
    """
    ids = [_PHONE_IDS["sil"]] * max(0, round(lead_samples / QUARTER_SAMPLES))
    end, time = len(ids), lead_samples / QUARTER_SAMPLES
    for phone, samples in zip(aligned.ids, aligned.samples, strict=True):
        time += samples / QUARTER_SAMPLES
        boundary = max(round(time), end + 1)
        ids += [phone] * (boundary - end)
        end = boundary
    ids += [_PHONE_IDS["fin"]] * (4 * frames - len(ids))
    return [(ids[i], ids[i + 1], ids[i + 2], ids[i + 3]) for i in range(0, 4 * frames, 4)]
