"""Convert the teacher's phoneme string and durations to phones of our inventory with lengths in samples.

The teacher also assigns durations to stress marks and spaces. The duration of a stress mark is added to its vowel, that
of a space is split between its neighbors. After a pause mark the whole duration of the space goes to the pause.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from legato.text.english.phones import INVENTORY, PRIMARY, SECONDARY, VOWELS

UNIT_SAMPLES = 600
QUARTER_SAMPLES = 480
_TO_INVENTORY: dict[str, str] = {
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
    """Phone ids (positions in `INVENTORY`) and lengths in samples, from the first phone to the last pause mark."""

    ids: tuple[int, ...]
    samples: tuple[float, ...]


def align(phonemes: str, durations_25ms: Sequence[int]) -> Aligned:
    """Align one sentence.

    `durations_25ms` has one number per character of `phonemes` and one more at each end, which is ignored. Raises
    `KeyError` for an unknown character, so that the caller skips the sentence.
    """
    if len(durations_25ms) != len(phonemes) + 2:
        raise ValueError(f"{len(phonemes)} phonemes with {len(durations_25ms)} durations")
    phones: list[str] = []
    units: list[float] = []
    stress = ""
    pending = 0.0  # duration that is added to the next phone
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
        phone = _TO_INVENTORY.get(symbol, symbol)
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
    """Text tokens of a sentence whose first phone starts at `lead_samples`: `frames` tokens of four phone ids.

    Boundaries are rounded cumulative lengths with at least one quarter per phone, as in `PhoneTokenizer`.
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
