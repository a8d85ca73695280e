"""Frozen codec tables: PCA of stacked log-mel frames and residual codebooks.

Tables in the cache (fitted with `features.py --fit`) take precedence over `tables.safetensors` in this folder, with
which the voice in the repository was trained.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import paths
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

MEL_BANDS = 80
MELS_PER_FRAME = 8
COMPONENTS = 128
NUM_CODEBOOKS = 8
CODEBOOK_SIZE = 512
FITTED = paths.CODEC / "tables.safetensors"
SHIPPED = Path(__file__).with_name("tables.safetensors")


@dataclasses.dataclass(frozen=True)
class Tables:
    """The frozen encoder: mean [640], basis [640, 128], codebooks [8, 512, 128]."""

    mean: Tensor
    basis: Tensor
    codebooks: Tensor

    @classmethod
    def load(cls, device: str = "cpu") -> Tables:
        return cls.read(FITTED if FITTED.exists() else SHIPPED, device)

    @classmethod
    def read(cls, path: Path, device: str = "cpu") -> Tables:
        tensors = load_file(str(path), device=device)
        return cls(mean=tensors["mean"], basis=tensors["basis"], codebooks=tensors["books"])

    def save(self) -> None:
        save_file({"mean": self.mean, "basis": self.basis, "books": self.codebooks}, str(FITTED))

    def encode(self, stacked: Tensor) -> Tensor:
        """Residual quantization: stacked log-mel [frames, 640] -> codes int64 [frames, 8]."""
        rest = (stacked - self.mean) @ self.basis
        codes = []
        for codebook in self.codebooks:
            codes.append(nearest(rest, codebook))
            rest = rest - codebook[codes[-1]]
        return torch.stack(codes, dim=1)

    def decode(self, codes: Tensor) -> Tensor:
        """Codes [frames, 8] -> stacked log-mel [frames, 640]."""
        latent = torch.stack([codebook[codes[:, level]] for level, codebook in enumerate(self.codebooks)]).sum(0)
        return latent @ self.basis.T + self.mean


def nearest(points: Tensor, centres: Tensor) -> Tensor:
    """Index of the nearest centre, [N, D] and [K, D] -> [N]."""
    half_norms = centres.pow(2).sum(1) / 2
    return torch.cat([(half_norms - block @ centres.T).argmin(1) for block in points.split(16_384)])
