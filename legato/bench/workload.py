"""What is spoken in a measurement, and when: texts, seeds, arrivals, the pace of text. Pure, and the same on every run.

Request `number` is the same text with the same seed in every setting and every run, so that runs can be paired. Knows
no transport and reads no clock.
"""

from __future__ import annotations

import io
import random
import wave
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

TEXTS = (
    "Good morning.",
    "The train to the coast leaves from platform four in twelve minutes.",
    "Yes, I can help you with that.",
    "Please leave your name after the tone, and somebody will call you back before the end of the day.",
    "It rained all night.",
    "She opened the old box and found a letter, a key and three small stones.",
)
"""Short and long in turn, as in a conversation."""
TOKEN_CHARACTERS = 4
"""A language model's token is taken for four characters: what it writes comes in such pieces."""


@dataclass(frozen=True, slots=True)
class Utterance:
    """One thing to say. `reference`: a recording to clone, or b""; `text_tokens_s` 0: all text at once."""

    text: str
    seed: int
    packet_frames: tuple[int, ...]
    max_frames: int
    text_tokens_s: float = 0.0
    instruct: str = ""
    reference: bytes = b""
    transcript: str = ""


@dataclass(frozen=True, slots=True)
class Workload:
    """All that is said in a run. `start_ms`: sound that the client collects before it plays."""

    texts: tuple[str, ...] = TEXTS
    seed: int = 0
    packet_frames: tuple[int, ...] = (1, 2, 4)
    max_frames: int = 0
    text_tokens_s: float = 0.0
    start_ms: float = 0.0
    instruct: str = ""
    reference: bytes = b""
    transcript: str = ""

    def utterance(self, number: int) -> Utterance:
        """Number `number`: the texts in turn, each time with a seed of its own."""
        return Utterance(
            self.texts[number % len(self.texts)],
            self.seed + number,
            self.packet_frames,
            self.max_frames,
            self.text_tokens_s,
            self.instruct,
            self.reference,
            self.transcript,
        )


def paced(text: str, tokens_s: float) -> list[tuple[float, str]]:
    """Pieces of `text`, each with the seconds after the first at which a model of that speed has written it."""
    pieces = [text[start : start + TOKEN_CHARACTERS] for start in range(0, len(text), TOKEN_CHARACTERS)]
    return [(number / tokens_s, piece) for number, piece in enumerate(pieces)]


def arrivals_s(rate_hz: float, count: int, seed: int) -> list[float]:
    """When `count` independent clients come, `rate_hz` of them a second on average; the first one at 0."""
    draw = random.Random(seed)
    return list(accumulate((draw.expovariate(rate_hz) for _ in range(count - 1)), initial=0.0))


def hum(rate_hz: int = 24_000, *, seconds: float = 3.0) -> bytes:
    """A wav file of a low tone: a reference for models that need one, where the voice does not matter."""
    times = np.arange(round(seconds * rate_hz)) / rate_hz
    samples = (0.2 * 32767 * np.sin(2 * np.pi * 150 * times)).astype("<i2")
    file = io.BytesIO()
    with wave.open(file, "wb") as wav:
        wav.setnchannels(1)
        wav.setsampwidth(2)
        wav.setframerate(rate_hz)
        wav.writeframes(samples.tobytes())
    return file.getvalue()
