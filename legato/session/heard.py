"""Estimate how much of a text was heard when its audio was stopped.

With word times (embedded voice, whose front end schedules every word before generation) the answer is exact: the words
that were played to their end. Without them it is an estimate: the played time is distributed over the characters by the
weights of the frame budget (a letter 2, a digit 9, a CJK character 4, ...) and rounded down to a whole word.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from legato.text.budget import character_frames
from legato.text.characters import is_space, is_wide
from legato.types import SpokenWord

CALM_SHARE = 0.4
"""The frame budget is 2.5 times the length of a calm reading; this factor recovers the reading."""
ERROR_CHARACTERS = 12
ERROR_SHARE = 0.1
"""In 95 % of cases an estimate is within 12 characters, or a tenth of the text if that is more. Measured against the
exact times of the embedded voice: 12 English sentences stopped at 19 points each, with and without knowing the length
of the audio (228 cases each; 95 % within the bound in both, the largest error 22 characters). Other languages were not
measured."""


class HeardSource(Enum):
    """Where the answer comes from."""

    ALL = "all"
    """The audio was played completely."""
    WORDS = "words"
    """Word times of the front end."""
    ESTIMATE = "estimate"


@dataclass(frozen=True, slots=True)
class HeardText:
    """How many `characters` of a text were heard, from its start, and the error of that number in either direction."""

    characters: int
    source: HeardSource
    error_characters: int


def heard_text(
    text: str,
    words: Sequence[SpokenWord],
    *,
    played_samples: int,
    generated_samples: int,
    fully_generated: bool,
    frame_samples: int,
) -> HeardText:
    """How much of `text` was heard after `played_samples`. `words`: words with known times; empty if there are none."""
    if fully_generated and played_samples >= generated_samples:
        return HeardText(len(text), HeardSource.ALL, 0)
    if words:
        ends = [word.text_end for word in words if word.end_sample <= played_samples]
        return HeardText(max(ends, default=0), HeardSource.WORDS, 0)
    weights = [character_frames(char) for char in text]
    # Until the audio is complete its length is not known: assume a calm reading.
    calm_samples = max(1.0, CALM_SHARE * sum(weights) * frame_samples)
    return _estimate(text, weights, played_samples, generated_samples if fully_generated else calm_samples)


def _estimate(text: str, weights: Sequence[float], played_samples: int, total_samples: float) -> HeardText:
    """Distribute `total_samples` over the characters of `text` in proportion to `weights`."""
    total_weight = sum(weights)
    if not total_weight or not played_samples:
        return HeardText(0, HeardSource.ESTIMATE, 0)
    played_weight = min(1.0, played_samples / total_samples) * total_weight
    characters, weight_so_far = 0, 0.0
    for weight in weights:
        if weight_so_far + weight > played_weight:
            break
        weight_so_far += weight
        characters += 1
    error = max(ERROR_CHARACTERS, round(ERROR_SHARE * len(text)))
    return HeardText(_round_down_to_word(text, characters), HeardSource.ESTIMATE, error)


def _round_down_to_word(text: str, end: int) -> int:
    """`end` if no word continues there, else the end of the last complete word before it."""
    if end >= len(text) or is_space(text[end]) or is_wide(text[end]):
        return end
    while end and not (is_space(text[end - 1]) or is_wide(text[end - 1])):
        end -= 1
    while end and is_space(text[end - 1]):
        end -= 1
    return end
