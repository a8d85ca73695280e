"""Codebooks: codes -> latents in the decoder, and how a checkpoint's running sums become a table.

Owns weights alone. Tables are made in float32 whatever the codec runs in, and may stay so. Knows no time, no state.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from legato.config.model import CodecDecoderConfig
from legato.errors import BadCodeError

USAGE_FLOOR = 1e-5
"""Smallest cluster usage that a codebook entry is divided by."""

DECODER_UNUSED = ("quantizer.rvq_first.input_proj.weight", "quantizer.rvq_rest.input_proj.weight")
"""Tensors of the checkpoint's `decoder.` that decoding does not need."""


def bake_codebook(embedding_sum: Tensor, cluster_usage: Tensor) -> Tensor:
    """The table [V, D] of a codebook, float32, from its stored running sum [V, D] and usage [V].

    In the checkpoint's decoder, `….vq.layers.N._codebook.{embedding_sum,cluster_usage}` become the parameter
    `….vq.layers.N._codebook.table`; in its encoder, `….layers.N.codebook.{embed_sum,cluster_usage}` become
    `….layers.N.codebook.table`.
    """
    return embedding_sum.float() / cluster_usage.float().clamp(min=USAGE_FLOOR)[:, None]


def check_codes(codes: Tensor, codebook_size: int, frames: Tensor | None = None) -> None:
    """Refuse codes [B, T, Q] outside 0..codebook_size-1; of row b only the first `frames[b]` frames are looked at.

    Raises BadCodeError that names row, frame, codebook and value of the first one.
    """
    bad = (codes < 0) | (codes >= codebook_size)
    if frames is not None:
        bad &= (torch.arange(codes.shape[1], device=codes.device) < frames[:, None])[..., None]
    if bool(bad.any()):
        row, frame, codebook = (int(at) for at in bad.nonzero()[0])
        value = int(codes[row, frame, codebook])
        raise BadCodeError(
            f"code {value} of codebook {codebook} in frame {frame} (row {row}) is outside 0..{codebook_size - 1}"
        )


class Codebook(nn.Module):
    """A table [V, D] of latents."""

    def __init__(self, size: int, width: int) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.zeros(size, width))


class VectorQuantizer(nn.Module):
    """One level; the name `_codebook` is the checkpoint's."""

    def __init__(self, size: int, width: int) -> None:
        super().__init__()
        self._codebook = Codebook(size, width)

    def forward(self, codes: Tensor) -> Tensor:
        """Codes [B, T] -> [B, T, D] in the table's dtype."""
        return functional.embedding(codes, self._codebook.table)


class ResidualLevels(nn.Module):
    """The levels of one residual quantizer, summed."""

    def __init__(self, levels: int, size: int, width: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList([VectorQuantizer(size, width) for _ in range(levels)])

    def forward(self, codes: Tensor) -> Tensor:
        """Codes [B, T, levels] -> [B, T, D], summed in the tables' dtype, level 0 first."""
        level_codes = codes.unbind(-1)
        total: Tensor = self.layers[0](level_codes[0])
        for level, code in zip(self.layers[1:], level_codes[1:], strict=True):
            total = total + level(code)
        return total


class ResidualQuantizer(nn.Module):
    """Levels and the projection of their sum to the codec's width."""

    def __init__(self, levels: int, size: int, width: int, out_width: int) -> None:
        super().__init__()
        self.vq = ResidualLevels(levels, size, width)
        self.output_proj = nn.Conv1d(width, out_width, 1, bias=False)

    def forward(self, codes: Tensor) -> Tensor:
        """Codes [B, T, levels] -> [B, out_width, T] in the projection's dtype."""
        weight = self.output_proj.weight
        return functional.conv1d(self.vq(codes).transpose(1, 2).to(weight.dtype), weight)


class SplitQuantizer(nn.Module):
    """Semantic levels (`rvq_first`) and acoustic levels (`rvq_rest`), each projected, then added."""

    def __init__(self, config: CodecDecoderConfig) -> None:
        super().__init__()
        size, width, out_width = config.codebook_size, config.codebook_dim // 2, config.codebook_dim
        self.semantic = config.num_semantic_quantizers
        self.rvq_first = ResidualQuantizer(self.semantic, size, width, out_width)
        self.rvq_rest = ResidualQuantizer(config.num_quantizers - self.semantic, size, width, out_width)

    def forward(self, codes: Tensor) -> Tensor:
        """Codes [B, T, Q] -> latents [B, codebook_dim, T]."""
        first: Tensor = self.rvq_first(codes[..., : self.semantic])
        rest: Tensor = self.rvq_rest(codes[..., self.semantic :])
        return first + rest
