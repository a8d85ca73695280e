"""Worker process of one system: load once, then synthesize and time one round per line on standard input.

    PYTHON -m benchmarks.peers.worker SYSTEM SETTINGS

SETTINGS is JSON (`Settings`). Each input line is the number of a round; the result is a line of JSON on standard
output. Runs in the system's environment, so packages are imported only when the system is known.
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
    """`model`: files to load (talker and codec if these are separate). `variant`: dtype or quantization."""

    model: list[str]
    variant: str
    threads: int
    frames: int
    packet_frames: int
    speaker: str


@dataclass(frozen=True)
class Timing:
    """One round: seconds until the first and the last samples, and seconds of audio."""

    round: int
    first_s: float
    total_s: float
    audio_s: float
    version: str


Synthesize = Callable[[int], Iterator[int]]
"""Round number (used as seed) to the number of samples of each packet."""
RATE_HZ = 24000


def legato(settings: Settings) -> Synthesize:
    """Legato. `variant`: dtype or quantization; after a `+` the dtype of the codec (else the default)."""
    import torch

    import legato

    torch.set_num_threads(settings.threads)
    dtypes = ("float32", "bfloat16")
    lm, _, codec = settings.variant.partition("+")
    quant = "none" if lm in dtypes else lm
    dtype = lm if lm in dtypes else "auto"
    tts = legato.load(settings.model[0], dtype=dtype, quant=quant, codec_dtype=codec or "auto")

    def synthesize(seed: int) -> Iterator[int]:
        stream = tts.stream(
            TEXT,
            voice=settings.speaker,
            seed=seed,
            max_frames=settings.frames,
            packet_frames=(settings.packet_frames,),
        )
        return (packet.sample_count for packet in stream)

    return synthesize


def official(settings: Settings) -> Synthesize:
    """The official package, which returns all samples at once."""
    from parity import stubs

    stubs.install()
    import torch
    from qwen_tts import Qwen3TTSModel

    torch.set_num_threads(settings.threads)
    tts: Any = Qwen3TTSModel.from_pretrained(settings.model[0], dtype=getattr(torch, settings.variant))

    def synthesize(seed: int) -> Iterator[int]:
        torch.manual_seed(seed)
        waves, _ = tts.generate_custom_voice(
            TEXT, settings.speaker, "english", non_streaming_mode=False, max_new_tokens=settings.frames
        )
        yield len(waves[0])

    return synthesize


def vox(settings: Settings) -> Synthesize:
    """`vox-tts`, with a model from its own converter."""
    import vox as engine_of

    engine: Any = engine_of.Engine(settings.model[0], device="cpu", threads=settings.threads)
    voice = engine.speaker_voice(settings.speaker)

    def synthesize(seed: int) -> Iterator[int]:
        parts = engine.stream(
            TEXT,
            voice,
            seed=seed,
            language="english",
            chunk_frames=settings.packet_frames,
            max_frames=settings.frames,
        )
        return (len(part) for part in parts)

    return synthesize


def native(settings: Settings) -> Synthesize:
    """`realtimetts-qwen-native-cpu`, with GGUF files of talker and codec."""
    from qwentts_cpp_cpu import QwenTTS

    tts: Any = QwenTTS(
        settings.model[0],
        settings.model[1],
        cpu_threads=settings.threads,
        cpu_stream_frames=settings.packet_frames,
    )

    def synthesize(seed: int) -> Iterator[int]:
        parts = tts.stream(
            text=TEXT, lang="english", speaker=settings.speaker, seed=seed, max_new_tokens=settings.frames
        )
        return (len(samples) for samples, _ in parts)

    return synthesize


SYSTEMS: dict[str, tuple[str, Callable[[Settings], Synthesize]]] = {
    "legato": ("legato-tts", legato),
    "qwen-tts": ("qwen-tts", official),
    "vox-tts": ("vox-tts", vox),
    "native-cpu": ("realtimetts-qwen-native-cpu", native),
}
"""Distribution name and loader of each system."""


def timed_round(synthesize: Synthesize, number: int, package: str) -> Timing:
    """Synthesize once and time it."""
    started, first_s, samples = time.perf_counter(), 0.0, 0
    for count in synthesize(number):
        first_s = first_s or time.perf_counter() - started
        samples += count
    total_s = time.perf_counter() - started
    return Timing(number, round(first_s, 4), round(total_s, 4), samples / RATE_HZ, version(package))


def main() -> None:
    """Load, print "ready", then serve rounds. Anything that the system itself prints is redirected to stderr."""
    output = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    package, load = SYSTEMS[sys.argv[1]]
    synthesize = load(Settings(**json.loads(sys.argv[2])))
    print("ready", file=output, flush=True)
    for line in sys.stdin:
        print(json.dumps(asdict(timed_round(synthesize, int(line), package))), file=output, flush=True)


if __name__ == "__main__":
    main()
