"""Speech -> codes without a learned encoder: stacked log-mel frames, principal components, residual k-means.

Owns the fit of the tables (`codec_tables.py`) and, for every store, its tape: `codec/<store>.codes` (int16
[frames, 8]), `codec/<store>.pcm` (int16, 1,920 samples for each frame) and `codec/<store>.jsonl` (each sentence
with its `code_start` and `frames`). They grow as the stores grow. New tables (`--fit`) make all
codes, and every model trained on them, worthless.
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
import places
import torch
from codec_tables import BOOK_SIZE, BOOKS, COMPONENTS, FITTED, MEL_BANDS, MELS_PER_FRAME, Tables, nearest
from numpy.typing import NDArray
from speech import FRAME_SAMPLES, SAMPLE_RATE_HZ, Store, stores
from torch import Tensor
from torch.nn import functional

HOP_SAMPLES = 240
WINDOW_SAMPLES = 1_024
FLOOR = 5e-4
"""Added to a mel magnitude before the logarithm: what lies far below speech shall not use up code words."""


@cache
def _mel_bank(device: str) -> Tensor:
    bank = librosa.filters.mel(sr=SAMPLE_RATE_HZ, n_fft=WINDOW_SAMPLES, n_mels=MEL_BANDS, fmin=0.0, fmax=12_000.0)
    return torch.from_numpy(bank).float().to(device)


def log_mel(wave: Tensor) -> Tensor:
    """[samples], whole frames of 1,920 -> [samples / 240, 80]; hop j is centred at sample 120 + 240 j."""
    before = WINDOW_SAMPLES // 2 - HOP_SAMPLES // 2
    padded = functional.pad(wave, (before, WINDOW_SAMPLES - HOP_SAMPLES - before))
    window = torch.hann_window(WINDOW_SAMPLES, device=wave.device)
    spectrum = torch.stft(
        padded, WINDOW_SAMPLES, HOP_SAMPLES, WINDOW_SAMPLES, window, center=False, return_complex=True
    ).abs()
    return torch.log(_mel_bank(str(wave.device)) @ spectrum + FLOOR).T


def stacked(wave: Tensor) -> Tensor:
    """[samples] -> [frames, 8 * 80]."""
    return log_mel(wave).reshape(-1, MELS_PER_FRAME * MEL_BANDS)


def k_means(points: Tensor, centres_wanted: int, rounds: int, generator: torch.Generator) -> Tensor:
    """Lloyd's rounds from random points; a centre that nothing is nearest to moves to a random point."""
    centres = points[torch.randperm(len(points), generator=generator)[:centres_wanted]].clone()
    for _ in range(rounds):
        owner = nearest(points, centres)
        counts = torch.bincount(owner, minlength=centres_wanted)
        sums = torch.zeros_like(centres).index_add_(0, owner, points)
        strays = points[torch.randint(len(points), (centres_wanted,), generator=generator)]
        centres = torch.where(counts[:, None] > 0, sums / counts.clamp(min=1)[:, None], strays)
    return centres


def fit(frames_per_speaker: int, seed: int = 0) -> Tables:
    """Tables from all stores, the speakers with equal weight: the scarcer one's frames are repeated."""
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
    books = []
    for number in range(BOOKS):
        book = k_means(rest, BOOK_SIZE, 25, generator)
        books.append(book)
        rest = rest - book[nearest(rest, book)]
        left_db = 8.686 * float((rest.pow(2).sum(1).mean() / basis.shape[0]).sqrt())
        print(f"book {number}: {left_db:.2f} dB a mel value left", flush=True)
    return Tables(mean, basis, torch.stack(books))


def _waves() -> Iterator[tuple[str, NDArray[np.float32]]]:
    for store in stores():
        for sentence in store.sentences():
            yield sentence.speaker, store.wave(sentence)


class Tape:
    """All frames of one store in a row, with their samples."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.codes_path = places.CODEC / f"{store.name}.codes"
        self.samples_path = places.CODEC / f"{store.name}.pcm"
        self.manifest_path = places.CODEC / f"{store.name}.jsonl"

    def rows(self) -> list[dict[str, object]]:
        """One a sentence: its fields, `cut_start_samples`, `code_start` and `frames`."""
        if not self.manifest_path.exists():
            return []
        return [json.loads(line) for line in self.manifest_path.read_text().split("\n")[:-1]]

    def codes(self) -> NDArray[np.int16]:
        """[frames, 8], mapped from the file."""
        return np.memmap(self.codes_path, "<i2", "r").reshape(-1, BOOKS)

    def samples(self) -> NDArray[np.int16]:
        """[frames, 1920], mapped from the file."""
        return np.memmap(self.samples_path, "<i2", "r").reshape(-1, FRAME_SAMPLES)

    def extend(self, tables: Tables) -> int:
        """Codes the sentences that are new since the last call; their number."""
        new = self.store.sentences(skip=len(self.rows()))
        with (
            self.samples_path.open("ab") as samples,
            self.codes_path.open("ab") as codes,
            self.manifest_path.open("a") as manifest,
        ):
            for sentence in new:
                start = codes.tell() // (2 * BOOKS)
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
    parser.add_argument("--fit", action="store_true", help="new tables: a new voice, talker included")
    parser.add_argument("--frames-per-speaker", type=int, default=50_000)
    parser.add_argument("--watch", action="store_true", help="go on as the stores grow, until stopped")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    places.CODEC.mkdir(parents=True, exist_ok=True)
    if arguments.fit and not FITTED.exists():
        fit(arguments.frames_per_speaker).save()
    tables = Tables.load()
    while True:
        for store in (*stores(), *stores(held_out=True)):
            if new := Tape(store).extend(tables):
                print(f"{store.name}: {new} sentences more", flush=True)
        if not arguments.watch:
            break
        time.sleep(60)


if __name__ == "__main__":
    main()
