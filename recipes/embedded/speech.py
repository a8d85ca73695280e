"""Stores of teacher speech, aligned to the codec's frame grid.

A store has two append-only files: `speech/<store>.pcm` (int16 samples at 24 kHz) and `speech/<store>.jsonl` (one JSON
object per sentence, written after its samples). A store has one speaker; a speaker may have several stores. Sentences
are cut so that the first phone starts exactly after two frames, and two frames of silence follow the last pause mark.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import paths
from numpy.typing import NDArray

SAMPLE_RATE_HZ = 24_000
FRAME_SAMPLES = 1_920
SAMPLES_PER_DURATION_UNIT = 600
LEAD_SAMPLES = 2 * FRAME_SAMPLES
TAIL_SAMPLES = 2 * FRAME_SAMPLES


@dataclass(frozen=True)
class Sentence:
    """One line of a manifest."""

    index: int
    speaker: str
    start: int
    samples: int
    text: str
    phonemes: str
    durations_25ms: tuple[int, ...]
    """One per phoneme character and one more at each end."""
    kind: str = "plain"

    @property
    def cut_start_samples(self) -> int:
        """Samples of the teacher's wave before the first frame; negative if silence must be inserted."""
        return self.durations_25ms[0] * SAMPLES_PER_DURATION_UNIT - LEAD_SAMPLES

    @property
    def frames(self) -> int:
        spoken = SAMPLES_PER_DURATION_UNIT * sum(self.durations_25ms[1:-1])
        return -(-(LEAD_SAMPLES + spoken + TAIL_SAMPLES) // FRAME_SAMPLES)


@dataclass
class SpeechStore:
    """One append-only store of speech."""

    name: str
    samples_path: Path = field(init=False)
    manifest_path: Path = field(init=False)

    def __post_init__(self) -> None:
        self.samples_path = paths.SPEECH / f"{self.name}.pcm"
        self.manifest_path = paths.SPEECH / f"{self.name}.jsonl"

    def sentences(self, skip: int = 0) -> list[Sentence]:
        """All complete sentences except the first `skip`."""
        if not self.manifest_path.exists():
            return []
        lines = self.manifest_path.read_text().split("\n")[:-1]
        return [_sentence(line) for line in lines[skip:]]

    def append(self, samples: NDArray[np.float32], **about: object) -> None:
        """Append one sentence. `about`: the fields of `Sentence` except `start` and `samples`."""
        paths.SPEECH.mkdir(parents=True, exist_ok=True)
        quantized = np.clip(np.round(samples * 32767), -32768, 32767).astype("<i2")
        with self.samples_path.open("ab") as sink:
            start = sink.tell() // 2
            sink.write(quantized.tobytes())
        row = {"start": start, "samples": len(quantized), **about}
        with self.manifest_path.open("a") as sink:
            sink.write(json.dumps(row, ensure_ascii=False) + "\n")

    def wave(self, sentence: Sentence, first_frame: int = 0, frames: int | None = None) -> NDArray[np.float32]:
        """Samples of `frames` frames from `first_frame` on, on the sentence's frame grid, padded with silence."""
        frames = sentence.frames - first_frame if frames is None else frames
        begin = sentence.cut_start_samples + first_frame * FRAME_SAMPLES
        wave = np.zeros(frames * FRAME_SAMPLES, np.float32)
        inside = max(begin, 0)
        wanted = min(begin + len(wave), sentence.samples) - inside
        if wanted > 0:
            offset = (sentence.start + inside) * 2
            read = np.fromfile(self.samples_path, "<i2", wanted, offset=offset)
            wave[inside - begin :][:wanted] = read.astype(np.float32) / 32767
        return wave


HELD_OUT_PREFIX = "heldout-"


def stores(held_out: bool = False) -> list[SpeechStore]:
    """All training stores, or all held-out stores, sorted by name."""
    found = [SpeechStore(path.stem) for path in sorted(paths.SPEECH.glob("*.pcm"))]
    return [store for store in found if store.name.startswith(HELD_OUT_PREFIX) == held_out]


def _sentence(line: str) -> Sentence:
    row = json.loads(line)
    return Sentence(**{**row, "durations_25ms": tuple(row["durations_25ms"])})
