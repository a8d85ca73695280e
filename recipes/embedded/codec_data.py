"""Random crops of speech and codes from the encoded stores, for training the codec decoder.

A `CropSampler` holds memory maps of all stores until it is reloaded.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from features import EncodedStore
from speech import FRAME_SAMPLES, stores
from torch import Tensor


@dataclass
class CropSampler:
    """Samples crops from all encoded stores. The weight of a speaker is the square root of its amount of speech."""

    generator: np.random.Generator
    codes: list[np.ndarray] = field(default_factory=list)
    samples: list[np.ndarray] = field(default_factory=list)
    weights: np.ndarray = field(default_factory=lambda: np.ones(0))

    def reload(self) -> None:
        """Map the files of all stores, including new speech."""
        encoded = [EncodedStore(store) for store in stores()]
        encoded = [store for store in encoded if store.codes_path.exists() and store.rows()]
        speakers = [str(store.rows()[0]["speaker"]) for store in encoded]
        self.codes = [store.codes() for store in encoded]
        self.samples = [store.samples() for store in encoded]
        lengths = np.array([len(codes) for codes in self.codes], np.float64)
        totals = {name: sum(n for n, s in zip(lengths, speakers, strict=True) if s == name) for name in speakers}
        shares = np.array([n / totals[s] * totals[s] ** 0.5 for n, s in zip(lengths, speakers, strict=True)])
        self.weights = shares / shares.sum()

    def hours(self) -> float:
        return sum(len(codes) for codes in self.codes) * FRAME_SAMPLES / 24_000 / 3600

    def sample_batch(self, rows: int, frames: int) -> tuple[Tensor, Tensor]:
        """Codes int64 [rows, frames, 8] and samples [rows, 1920 * frames]."""
        codes, waves = [], []
        for store in self.generator.choice(len(self.codes), size=rows, p=self.weights):
            usable = min(len(self.codes[store]), len(self.samples[store])) - frames
            start = int(self.generator.integers(usable))
            codes.append(np.asarray(self.codes[store][start : start + frames], np.int64))
            waves.append(np.asarray(self.samples[store][start : start + frames], np.float32).reshape(-1) / 32_767)
        return torch.from_numpy(np.stack(codes)), torch.from_numpy(np.stack(waves))
