"""Encode speech to codes without a learned encoder: stacked log-mel frames, PCA, residual k-means.

Writes three files per speech store: `codec/<store>.codes` (int16 [frames, 8]), `codec/<store>.pcm` (int16, 1,920
samples per frame) and `codec/<store>.jsonl` (one line per sentence, with `code_start` and `frames`). New speech is
appended. `--fit` fits new tables (`codec_tables.py`), which invalidates all codes and all models trained on them.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import time
from collections.abc import Iterator
from functools import cache

import librosa
import numpy as np
import paths
import torch
from codec_tables import CODEBOOK_SIZE, COMPONENTS, FITTED, MEL_BANDS, MELS_PER_FRAME, NUM_CODEBOOKS, Tables, nearest
from numpy.typing import NDArray
from speech import FRAME_SAMPLES, SAMPLE_RATE_HZ, SpeechStore, stores
from torch import Tensor
from torch.nn import functional

HOP_SAMPLES = 240
WINDOW_SAMPLES = 1_024
FLOOR = 5e-4
"""Added to mel magnitudes before the logarithm, so that levels far below speech use no codebook entries."""


@cache
def _mel_bank(device: str) -> Tensor:
    bank = librosa.filters.mel(sr=SAMPLE_RATE_HZ, n_fft=WINDOW_SAMPLES, n_mels=MEL_BANDS, fmin=0.0, fmax=12_000.0)
    return torch.from_numpy(bank).float().to(device)


def log_mel(wave: Tensor) -> Tensor:
    """Log-mel spectrogram: [samples] (a multiple of 1,920) -> [samples / 240, 80]. Hop j is centered at 120 + 240 j."""
    before = WINDOW_SAMPLES // 2 - HOP_SAMPLES // 2
    padded = functional.pad(wave, (before, WINDOW_SAMPLES - HOP_SAMPLES - before))
    window = torch.hann_window(WINDOW_SAMPLES, device=wave.device)
    spectrum = torch.stft(
        padded, WINDOW_SAMPLES, HOP_SAMPLES, WINDOW_SAMPLES, window, center=False, return_complex=True
    ).abs()
    return torch.log(_mel_bank(str(wave.device)) @ spectrum + FLOOR).T


def stacked(wave: Tensor) -> Tensor:
    """Stacked log-mel frames: [samples] -> [frames, 8 * 80]."""
    return log_mel(wave).reshape(-1, MELS_PER_FRAME * MEL_BANDS)


def k_means(points: Tensor, centres_wanted: int, rounds: int, generator: torch.Generator) -> Tensor:
    """Lloyd's algorithm with random initialization. Empty clusters are moved to random points."""
    centres = points[torch.randperm(len(points), generator=generator)[:centres_wanted]].clone()
    for _ in range(rounds):
        owner = nearest(points, centres)
        counts = torch.bincount(owner, minlength=centres_wanted)
        sums = torch.zeros_like(centres).index_add_(0, owner, points)
        strays = points[torch.randint(len(points), (centres_wanted,), generator=generator)]
        centres = torch.where(counts[:, None] > 0, sums / counts.clamp(min=1)[:, None], strays)
    return centres


def fit(frames_per_speaker: int, seed: int = 0) -> Tables:
    """Fit the tables to all stores. Speakers have equal weight; frames of the smaller one are repeated."""
    generator = torch.Generator().manual_seed(seed)
    by_speaker: dict[str, list[Tensor]] = {}
    for speaker, wave in _waves():
        by_speaker.setdefault(speaker, []).append(stacked(torch.from_numpy(wave)))
    chosen = []
    for speaker, blocks in by_speaker.items():
        frames = torch.cat(blocks)
        print(f"{speaker}: {len(frames)} frames", flush=True)
        repeated = frames.repeat(-(-frames_per_speaker // len(frames)), 1)
        chosen.append(repeated[torch.randperm(len(repeated), generator=generator)[:frames_per_speaker]])
    points = torch.cat(chosen)
    mean = points.mean(0)
    spread, directions = torch.linalg.eigh((points - mean).T @ (points - mean) / len(points))
    basis = directions.flip(1)[:, :COMPONENTS].contiguous()
    print(f"{COMPONENTS} components keep {float(spread.flip(0)[:COMPONENTS].sum() / spread.sum()):.4f}", flush=True)
    rest = (points - mean) @ basis
    codebooks = []
    for number in range(NUM_CODEBOOKS):
        codebook = k_means(rest, CODEBOOK_SIZE, 25, generator)
        codebooks.append(codebook)
        rest = rest - codebook[nearest(rest, codebook)]
        left_db = 8.686 * float((rest.pow(2).sum(1).mean() / basis.shape[0]).sqrt())
        print(f"codebook {number}: {left_db:.2f} dB a mel value left", flush=True)
    return Tables(mean, basis, torch.stack(codebooks))


def _waves() -> Iterator[tuple[str, NDArray[np.float32]]]:
    for store in stores():
        for sentence in store.sentences():
            yield sentence.speaker, store.wave(sentence)


class EncodedStore:
    """Codes and samples of all sentences of one speech store."""

    def __init__(self, store: SpeechStore) -> None:
        self.store = store
        self.codes_path = paths.CODEC / f"{store.name}.codes"
        self.samples_path = paths.CODEC / f"{store.name}.pcm"
        self.manifest_path = paths.CODEC / f"{store.name}.jsonl"

    def rows(self) -> list[dict[str, object]]:
        """One row per sentence: its fields, `cut_start_samples`, `code_start` and `frames`."""
        if not self.manifest_path.exists():
            return []
        return [json.loads(line) for line in self.manifest_path.read_text().split("\n")[:-1]]

    def codes(self) -> NDArray[np.int16]:
        """[frames, 8], memory-mapped."""
        return np.memmap(self.codes_path, "<i2", "r").reshape(-1, NUM_CODEBOOKS)

    def samples(self) -> NDArray[np.int16]:
        """[frames, 1920], memory-mapped."""
        return np.memmap(self.samples_path, "<i2", "r").reshape(-1, FRAME_SAMPLES)

    def extend(self, tables: Tables) -> int:
        """Encode the new sentences of the store and return their number."""
        new = self.store.sentences(skip=len(self.rows()))
        with (
            self.samples_path.open("ab") as samples,
            self.codes_path.open("ab") as codes,
            self.manifest_path.open("a") as manifest,
        ):
            for sentence in new:
                start = codes.tell() // (2 * NUM_CODEBOOKS)
                wave = self.store.wave(sentence)
                found = tables.encode(stacked(torch.from_numpy(wave))).numpy().astype("<i2")
                samples.write(np.round(wave * 32767).astype("<i2").tobytes())
                codes.write(found.tobytes())
                about = {
                    **dataclasses.asdict(sentence),
                    "cut_start_samples": sentence.cut_start_samples,
                    "code_start": start,
                    "frames": len(found),
                }
                samples.flush()
                codes.flush()
                manifest.write(json.dumps(about, ensure_ascii=False) + "\n")
                manifest.flush()
        return len(new)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--fit", action="store_true", help="fit new tables (invalidates all trained models)")
    parser.add_argument("--frames-per-speaker", type=int, default=50_000)
    parser.add_argument("--watch", action="store_true", help="keep encoding new speech until interrupted")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    paths.CODEC.mkdir(parents=True, exist_ok=True)
    if arguments.fit and not FITTED.exists():
        fit(arguments.frames_per_speaker).save()
    tables = Tables.load()
    while True:
        for store in (*stores(), *stores(held_out=True)):
            if new := EncodedStore(store).extend(tables):
                print(f"{store.name}: {new} new sentences", flush=True)
        if not arguments.watch:
            break
        time.sleep(60)


if __name__ == "__main__":
    main()
