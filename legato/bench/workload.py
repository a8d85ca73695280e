"""Benchmark workloads: texts, seeds, arrival times and text rate.

Deterministic: request `number` has the same text and seed in every run, so that runs can be paired.
"""

from __future__ import annotations

import io
import random
import wave
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from legato.engine.frontend import FrontEnd
from legato.engine.packetizer import PacketPolicy
from legato.engine.request import default_sampling
from legato.engine.stream import StreamRequest
from legato.types import DEFAULT_PACKET_FRAMES, PromptSpec, TextLayout
from legato.weights.loading import LoadedModel

TEXTS = (
    "Good morning.",
    "The train to the coast leaves from platform four in twelve minutes.",
    "Yes, I can help you with that.",
    "Please leave your name after the tone, and somebody will call you back before the end of the day.",
    "It rained all night.",
    "She opened the old box and found a letter, a key and three small stones.",
)
"""Short and long texts alternate, as in a conversation."""
TOKEN_CHARACTERS = 4
"""Assumed characters per token of the LLM that produces the text. Text arrives in pieces of this size."""


@dataclass(frozen=True, slots=True)
class Utterance:
    """One text to synthesize.

    `packet_frames`: () lets the engine choose. `text_tokens_per_s`: 0 sends the whole text. `reference`: recording to
    clone, or b"".
    """

    text: str
    seed: int
    packet_frames: tuple[int, ...]
    max_frames: int
    text_tokens_per_s: float = 0.0
    instruct: str = ""
    reference: bytes = b""
    transcript: str = ""


@dataclass(frozen=True, slots=True)
class Workload:
    """Utterances of a run. `prebuffer_ms`: audio that the client buffers before playback."""

    texts: tuple[str, ...] = TEXTS
    seed: int = 0
    packet_frames: tuple[int, ...] = DEFAULT_PACKET_FRAMES
    max_frames: int = 0
    text_tokens_per_s: float = 0.0
    prebuffer_ms: float = 0.0
    instruct: str = ""
    reference: bytes = b""
    transcript: str = ""

    def utterance(self, number: int) -> Utterance:
        """The utterance of request `number`: texts in rotation, one seed per number."""
        return Utterance(
            text=self.texts[number % len(self.texts)],
            seed=self.seed + number,
            packet_frames=self.packet_frames,
            max_frames=self.max_frames,
            text_tokens_per_s=self.text_tokens_per_s,
            instruct=self.instruct,
            reference=self.reference,
            transcript=self.transcript,
        )


def text_at_rate(text: str, tokens_per_s: float) -> list[tuple[float, str]]:
    """Split `text` into pieces that arrive at `tokens_per_s`. Each has its time in seconds after the first piece."""
    pieces = [text[start : start + TOKEN_CHARACTERS] for start in range(0, len(text), TOKEN_CHARACTERS)]
    return [(number / tokens_per_s, piece) for number, piece in enumerate(pieces)]


def arrival_times_s(rate_hz: float, count: int, seed: int) -> list[float]:
    """Poisson arrivals of `count` clients, `rate_hz` per second on average; the first arrives at 0."""
    generator = random.Random(seed)
    return list(accumulate((generator.expovariate(rate_hz) for _ in range(count - 1)), initial=0.0))


def reference_tone(rate_hz: int = 24_000, *, seconds: float = 3.0) -> bytes:
    """A WAV file with a low tone, used as clone reference in benchmarks, where the voice does not matter."""
    times = np.arange(round(seconds * rate_hz)) / rate_hz
    samples = (0.2 * 32767 * np.sin(2 * np.pi * 150 * times)).astype("<i2")
    file = io.BytesIO()
    with wave.open(file, "wb") as wav:
        wav.setnchannels(1)
        wav.setsampwidth(2)
        wav.setframerate(rate_hz)
        wav.writeframes(samples.tobytes())
    return file.getvalue()


INSTRUCT = "A calm voice."


def plain_request(model: LoadedModel, front_end: FrontEnd) -> StreamRequest:
    """A request with the checkpoint's first voice and default sampling, in streaming layout, with packets of 4 frames.

    For a Base checkpoint it has no reference, because the speed does not depend on the voice.
    """
    config = model.config
    spec = PromptSpec(
        language="auto",
        speaker=next(iter(config.talker.speakers), ""),
        layout=TextLayout.STREAMING,
        instruct=front_end.encode_instruction(INSTRUCT) if config.kind == "voice_design" else (),
    )
    return StreamRequest(spec, default_sampling(config), 0, PacketPolicy((4,)))
