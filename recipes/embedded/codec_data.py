"""Crops of speech and codes, drawn at random from the tapes, as the codec decoder is trained on them.

Owns how often a speaker is heard. Knows no model; takes new speech in when it is told to look again.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from features import Tape
from speech import FRAME_SAMPLES, stores
from torch import Tensor


@dataclass
class Data:
    """Crops of all tapes; a speaker with little speech is drawn more often than its share."""

    generator: np.random.Generator
    codes: list[np.ndarray] = field(default_factory=list)
    samples: list[np.ndarray] = field(default_factory=list)
    weights: np.ndarray = field(default_factory=lambda: np.ones(0))

    def reload(self) -> None:
        """Maps the tapes as they are now."""
        tapes = [(store, Tape(store)) for store in stores()]
        tapes = [(store, tape) for store, tape in tapes if tape.codes_path.exists() and tape.rows()]
        speakers = [str(tape.rows()[0]["speaker"]) for _, tape in tapes]
        self.codes = [tape.codes() for _, tape in tapes]
        self.samples = [tape.samples() for _, tape in tapes]
        lengths = np.array([len(codes) for codes in self.codes], np.float64)
        totals = {name: sum(n for n, s in zip(lengths, speakers, strict=True) if s == name) for name in speakers}
        shares = np.array([n / totals[s] * totals[s] ** 0.5 for n, s in zip(lengths, speakers, strict=True)])
        self.weights = shares / shares.sum()

    def hours(self) -> float:
        return sum(len(codes) for codes in self.codes) * FRAME_SAMPLES / 24_000 / 3600

    def batch(self, rows: int, frames: int) -> tuple[Tensor, Tensor]:
        """Codes int64 [rows, frames, 8] and samples [rows, 1920 * frames]."""
        codes, waves = [], []
        for tape in self.generator.choice(len(self.codes), size=rows, p=self.weights):
            usable = min(len(self.codes[tape]), len(self.samples[tape])) - frames
            start = int(self.generator.integers(usable))
            codes.append(np.asarray(self.codes[tape][start : start + frames], np.int64))
            waves.append(np.asarray(self.samples[tape][start : start + frames], np.float32).reshape(-1) / 32_767)
        return torch.from_numpy(np.stack(codes)), torch.from_numpy(np.stack(waves))
