"""Residual vector quantizers: codes to latents in the decoder, latents to codes in the encoder.

A checkpoint stores each codebook as a running sum and usage counts; it is converted to a float32 table when it is
loaded. The tables may stay float32 in a decoder of a narrower dtype.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from legato.config.model import CodecDecoderConfig, CodecEncoderConfig
from legato.errors import BadCodeError
from legato.models.layers.conv import ConvWeight
from legato.types import Frame

USAGE_FLOOR = 1e-5
"""Lower bound of the usage count that a codebook entry is divided by."""

DECODER_UNUSED = ("quantizer.rvq_first.input_proj.weight", "quantizer.rvq_rest.input_proj.weight")
"""Tensors below `decoder.` in a checkpoint that decoding does not use."""


def encoder_unused(config: CodecEncoderConfig) -> tuple[str, ...]:
    """Tensors below `encoder.` in a checkpoint that encoding does not use: flags, output projections, unused levels."""
    stored = {
        "semantic": config.num_semantic_quantizers,
        "acoustic": config.num_quantizers - config.num_semantic_quantizers,
    }
    needed = {
        "semantic": config.num_semantic_quantizers,
        "acoustic": config.valid_quantizers - config.num_semantic_quantizers,
    }
    names: list[str] = []
    for kind, levels in stored.items():
        prefix = f"quantizer.{kind}_residual_vector_quantizer."
        names.append(prefix + "output_proj.weight")
        for level in range(levels):
            codebook = f"{prefix}layers.{level}.codebook."
            names.append(codebook + "initialized")
            if level >= needed[kind]:
                names += [codebook + "embed_sum", codebook + "cluster_usage"]
    return tuple(names)


def codebook_table(embedding_sum: Tensor, cluster_usage: Tensor) -> Tensor:
    """The table [V, D] of a codebook, float32, from its running sum [V, D] and usage counts [V].

    Names in a checkpoint: `….vq.layers.N._codebook.{embedding_sum,cluster_usage}` in the decoder and
    `….layers.N.codebook.{embed_sum,cluster_usage}` in the encoder. The table is the parameter `….table` in their
    place.
    """
    return embedding_sum.float() / cluster_usage.float().clamp(min=USAGE_FLOOR)[:, None]


def check_codes(frames: Sequence[Frame], codebook_size: int) -> None:
    """Raise `BadCodeError` with frame, codebook and value of the first code outside 0..codebook_size - 1."""
    for at, frame in enumerate(frames):
        for codebook, value in enumerate(frame):
            if not 0 <= value < codebook_size:
                raise BadCodeError(
                    f"code {value} of codebook {codebook} in frame {at} is outside 0..{codebook_size - 1}"
                )


class Codebook(nn.Module):
    """Codebook vectors: `table` [V, D]."""

    def __init__(self, size: int, width: int) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.zeros(size, width))


class VectorQuantizer(nn.Module):
    """One level of a residual quantizer. The attribute `_codebook` has its name in the checkpoint."""

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
    """Residual levels, and the projection of their sum to the codec's width."""

    def __init__(self, levels: int, size: int, width: int, out_width: int) -> None:
        super().__init__()
        self.vq = ResidualLevels(levels, size, width)
        self.output_proj = ConvWeight(out_width, width, 1, None)

    def forward(self, codes: Tensor) -> Tensor:
        """Codes [B, T, levels] -> [B, T, out_width] in the projection's dtype."""
        weight = self.output_proj.time_major[:, 0]
        return functional.linear(self.vq(codes).to(weight.dtype), weight)


class SplitQuantizer(nn.Module):
    """Sum of the projected semantic levels (`rvq_first`) and acoustic levels (`rvq_rest`)."""

    def __init__(self, config: CodecDecoderConfig) -> None:
        super().__init__()
        size, width, out_width = config.codebook_size, config.codebook_dim // 2, config.codebook_dim
        self.semantic = config.num_semantic_quantizers
        self.rvq_first = ResidualQuantizer(self.semantic, size, width, out_width)
        self.rvq_rest = ResidualQuantizer(config.num_quantizers - self.semantic, size, width, out_width)

    def forward(self, codes: Tensor) -> Tensor:
        """Codes [B, T, Q] -> latents [B, T, codebook_dim]."""
        first: Tensor = self.rvq_first(codes[..., : self.semantic])
        rest: Tensor = self.rvq_rest(codes[..., self.semantic :])
        return first + rest


class EncoderLevel(nn.Module):
    """One level of the encoder's quantizer: nearest-neighbour search in `codebook.table`."""

    def __init__(self, size: int, width: int) -> None:
        super().__init__()
        self.codebook = Codebook(size, width)

    def nearest(self, x: Tensor) -> Tensor:
        """`x` [B, T, D] -> codes [B, T] of the nearest entries: L2 distance in float32, ties to the lowest code."""
        flat = x.flatten(0, 1).float()
        return torch.cdist(flat[None], self.codebook.table.float()[None])[0].argmin(-1).view(x.shape[:2])

    def forward(self, codes: Tensor) -> Tensor:
        """Codes [B, T] -> [B, T, D]."""
        return functional.embedding(codes, self.codebook.table)


class EncoderResidualQuantizer(nn.Module):
    """Project latents and quantize them level by level; each level quantizes the residual of the previous ones."""

    def __init__(self, levels: int, size: int, width: int, in_width: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList([EncoderLevel(size, width) for _ in range(levels)])
        self.input_proj = ConvWeight(width, in_width, 1, None)

    def forward(self, x: Tensor) -> Tensor:
        """Latents [B, T, in_width] -> codes [B, T, levels]."""
        residual = functional.linear(x, self.input_proj.time_major[:, 0])
        codes: list[Tensor] = []
        for level in self.layers:
            assert isinstance(level, EncoderLevel)
            code = level.nearest(residual)
            residual = residual - level(code).to(residual.dtype)
            codes.append(code)
        return torch.stack(codes, dim=-1)


class EncoderQuantizer(nn.Module):
    """Independent semantic and acoustic quantizers of the same latents, with the `valid_quantizers` levels only."""

    def __init__(self, config: CodecEncoderConfig) -> None:
        super().__init__()
        size, width, latent = config.codebook_size, config.codebook_dim, config.hidden_size
        semantic = config.num_semantic_quantizers
        acoustic = config.valid_quantizers - semantic
        self.semantic_residual_vector_quantizer = EncoderResidualQuantizer(semantic, size, width, latent)
        self.acoustic_residual_vector_quantizer = EncoderResidualQuantizer(acoustic, size, width, latent)

    def forward(self, x: Tensor) -> Tensor:
        """Latents [B, T, latent] -> codes [B, T, valid_quantizers], semantic first."""
        semantic = self.semantic_residual_vector_quantizer(x)
        return torch.cat((semantic, self.acoustic_residual_vector_quantizer(x)), dim=-1)
