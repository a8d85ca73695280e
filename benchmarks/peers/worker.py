"""One system in a process of its own: it loads once, then speaks whenever it is told to, and says how long that took.

    PYTHON -m benchmarks.peers.worker SYSTEM SETTINGS

SETTINGS is JSON (`Settings`). A line on standard input is the number of a round; the answer is a line of JSON on
standard output. Runs in the environment of its system and imports nothing else before it is told which one that is.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import version
from typing import Any

TEXT = "The train leaves at nine, so we should be there a little earlier."


@dataclass(frozen=True)
class Settings:
    """`model`: what the system loads; talker and codec where these are two files. `variant`: the number format."""

    model: list[str]
    variant: str
    threads: int
    frames: int
    packet_frames: int
    speaker: str


@dataclass(frozen=True)
class Spoken:
    """One round: seconds until the first samples, until the last, and of sound."""

    round: int
    first_s: float
    total_s: float
    audio_s: float
    version: str


Speak = Callable[[int], Iterator[int]]
"""A round's number (the seed) to the number of samples in each part that arrives."""
RATE_HZ = 24000


def legato(settings: Settings) -> Speak:
    """This package. `variant`: a dtype, or a way of quantising; after a `+` the codec's dtype (else the default)."""
    import torch

    import legato

    torch.set_num_threads(settings.threads)
    dtypes = ("float32", "bfloat16")
    language, _, sound = settings.variant.partition("+")
    quant = "none" if language in dtypes else language
    dtype = language if language in dtypes else "auto"
    tts = legato.load(settings.model[0], dtype=dtype, quant=quant, codec_dtype=sound or "auto")

    def speak(seed: int) -> Iterator[int]:
        stream = tts.stream(
            TEXT,
            voice=settings.speaker,
            seed=seed,
            max_frames=settings.frames,
            packet_frames=(settings.packet_frames,),
        )
        return (packet.sample_count for packet in stream)

    return speak


def official(settings: Settings) -> Speak:
    """The official package, which gives its samples all at once."""
    from parity import stubs

    stubs.install()
    import torch
    from qwen_tts import Qwen3TTSModel

    torch.set_num_threads(settings.threads)
    tts: Any = Qwen3TTSModel.from_pretrained(settings.model[0], dtype=getattr(torch, settings.variant))

    def speak(seed: int) -> Iterator[int]:
        torch.manual_seed(seed)
        waves, _ = tts.generate_custom_voice(
            TEXT, settings.speaker, "english", non_streaming_mode=False, max_new_tokens=settings.frames
        )
        yield len(waves[0])

    return speak


def vox(settings: Settings) -> Speak:
    """`vox-tts`, on a model that its own converter wrote."""
    import vox as engine_of

    engine: Any = engine_of.Engine(settings.model[0], device="cpu", threads=settings.threads)
    voice = engine.speaker_voice(settings.speaker)

    def speak(seed: int) -> Iterator[int]:
        parts = engine.stream(
            TEXT,
            voice,
            seed=seed,
            language="english",
            chunk_frames=settings.packet_frames,
            max_frames=settings.frames,
        )
        return (len(part) for part in parts)

    return speak


def native(settings: Settings) -> Speak:
    """`realtimetts-qwen-native-cpu`, on a GGUF of talker and codec."""
    from qwentts_cpp_cpu import QwenTTS

    tts: Any = QwenTTS(
        settings.model[0],
        settings.model[1],
        cpu_threads=settings.threads,
        cpu_stream_frames=settings.packet_frames,
    )

    def speak(seed: int) -> Iterator[int]:
        parts = tts.stream(
            text=TEXT, lang="english", speaker=settings.speaker, seed=seed, max_new_tokens=settings.frames
        )
        return (len(samples) for samples, _ in parts)

    return speak


SYSTEMS: dict[str, tuple[str, Callable[[Settings], Speak]]] = {
    "legato": ("legato-tts", legato),
    "qwen-tts": ("qwen-tts", official),
    "vox-tts": ("vox-tts", vox),
    "native-cpu": ("realtimetts-qwen-native-cpu", native),
}
"""The name of each system's distribution, and how it is made to speak."""


def spoken(speak: Speak, number: int, package: str) -> Spoken:
    """Speak once."""
    began, first_s, samples = time.perf_counter(), 0.0, 0
    for count in speak(number):
        first_s = first_s or time.perf_counter() - began
        samples += count
    total_s = time.perf_counter() - began
    return Spoken(number, round(first_s, 4), round(total_s, 4), samples / RATE_HZ, version(package))


def main() -> None:
    """Load, say so, then answer each line. Whatever the system prints itself goes to standard error."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    package, make = SYSTEMS[sys.argv[1]]
    speak = make(Settings(**json.loads(sys.argv[2])))
    print("ready", file=answers, flush=True)
    for line in sys.stdin:
        print(json.dumps(asdict(spoken(speak, int(line), package))), file=answers, flush=True)


if __name__ == "__main__":
    main()
