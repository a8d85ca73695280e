"""The frozen tables of the codec: principal components of stacked log-mel frames, and residual codebooks over them.

Owns which tables are in force: those that the cache holds (`features.py --fit`), else the ones beside this file,
which the voice in the repository was made with. Knows no audio.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import places
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

MEL_BANDS = 80
MELS_PER_FRAME = 8
COMPONENTS = 128
BOOKS = 8
BOOK_SIZE = 512
FITTED = places.CODEC / "tables.safetensors"
SHIPPED = Path(__file__).with_name("tables.safetensors")


@dataclasses.dataclass(frozen=True)
class Tables:
    """The frozen encoder: mean [640], basis [640, 128], books [8, 512, 128]."""

    mean: Tensor
    basis: Tensor
    books: Tensor

    @classmethod
    def load(cls, device: str = "cpu") -> Tables:
        return cls(**load_file(str(FITTED if FITTED.exists() else SHIPPED), device=device))

    def save(self) -> None:
        save_file(dataclasses.asdict(self), str(FITTED))

    def encode(self, stacked: Tensor) -> Tensor:
        """Stacked log-mel [frames, 640] -> codes int64 [frames, 8]: in each book the entry nearest to what is left."""
        rest = (stacked - self.mean) @ self.basis
        codes = []
        for book in self.books:
            codes.append(nearest(rest, book))
            rest = rest - book[codes[-1]]
        return torch.stack(codes, dim=1)

    def decode(self, codes: Tensor) -> Tensor:
        """Codes [frames, 8] -> the stacked log-mel [frames, 640] that they stand for."""
        latent = torch.stack([book[codes[:, level]] for level, book in enumerate(self.books)]).sum(0)
        return latent @ self.basis.T + self.mean


def nearest(points: Tensor, centres: Tensor) -> Tensor:
    """Index of the nearest centre, [N, D] and [K, D] -> [N]."""
    half_norms = centres.pow(2).sum(1) / 2
    return torch.cat([(half_norms - block @ centres.T).argmin(1) for block in points.split(16_384)])
