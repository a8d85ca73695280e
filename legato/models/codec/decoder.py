"""The codec decoder: codes -> samples, in windows of any size that join without a seam.

Owns weights alone; a stream's history is an argument and a result. A whole decode is a fresh history and one window:
there is no second path. No look-ahead, no tail, no flush: a frame in is `frame_samples` samples out.
The module graph and the names of the weights are those of the official speech tokenizer's `decoder.`; only the
codebooks differ, which are baked into tables (see `codec/quantizer.py`).
"""

from __future__ import annotations

from math import prod

import torch
from torch import Tensor, nn

from legato.config.model import CodecDecoderConfig
from legato.models.codec.quantizer import SplitQuantizer
from legato.models.codec.state import CodecHistory
from legato.models.codec.transformer import FrameTransformer
from legato.models.codec.upsample import UpsampleStage, WaveHead
from legato.models.layers.attention import KeyValues
from legato.models.layers.conv import CausalConv1d, HistoryWalk, history_shapes

PRE_CONV_KERNEL = 3
"""Fixed by the official graph; its JSON does not name it."""


class CodecDecoder(nn.Module):
    """Frames of codes to samples in [-1, 1]."""

    def __init__(self, config: CodecDecoderConfig) -> None:
        super().__init__()
        self.config = config
        self.frame_samples = prod(config.upsampling_ratios) * prod(config.upsample_rates)
        self.quantizer = SplitQuantizer(config)
        self.pre_conv = CausalConv1d(config.codebook_dim, config.latent_dim, PRE_CONV_KERNEL)
        self.pre_transformer = FrameTransformer(config)
        self.upsample = nn.ModuleList(UpsampleStage(config.latent_dim, ratio) for ratio in config.upsampling_ratios)
        self.decoder = WaveHead(config.latent_dim, config.decoder_dim, config.upsample_rates)

    @property
    def dtype(self) -> torch.dtype:
        """What it computes in; its codebooks may be kept more exactly."""
        return self.pre_transformer.norm.weight.dtype

    def fresh(
        self, batch: int, dtype: torch.dtype | None = None, device: torch.device | str | None = None
    ) -> CodecHistory:
        """The history of `batch` streams before their first frame; dtype and device default to the weights'."""
        like = self.pre_transformer.norm.weight
        dtype, device = dtype or like.dtype, device or like.device
        past = self.pre_transformer.history_shapes()
        return CodecHistory(
            torch.zeros(batch, dtype=torch.int64, device=device),
            tuple(torch.zeros((batch, *shape), dtype=dtype, device=device) for shape in past),
            tuple(torch.zeros((batch, *shape), dtype=dtype, device=device) for shape in past),
            tuple(torch.zeros((batch, *shape), dtype=dtype, device=device) for shape in history_shapes(self)),
        )

    def forward(
        self, history: CodecHistory, codes: Tensor, frames: Tensor | None = None
    ) -> tuple[Tensor, CodecHistory]:
        """Decode the next window of each row.

        `codes` int64 [B, T, Q], all inside their codebooks (`check_codes`); row b has `frames[b]` <= T valid frames,
        T where `frames` (int64 [B]) is None. Returns samples [B, T * frame_samples], float32 (float64 for a float64
        decoder), zero behind a row's valid frames, and the history after exactly the valid frames.
        Arithmetic after the 12 Hz tokenizer of the official package (`qwen-tts` 0.1.1), whole-signal form.
        """
        rows, count, _ = codes.shape
        behind = None if frames is None else torch.arange(count, device=codes.device) >= frames[:, None]
        if behind is not None:
            codes = codes.masked_fill(behind[..., None], 0)
        walk = HistoryWalk(history.convs)
        x = walk.run(self.pre_conv, self.quantizer(codes), frames)
        past = [KeyValues(*each) for each in zip(history.keys, history.values, strict=True)]
        x, past = self.pre_transformer(x, past, history.positions, frames)
        lengths = frames
        for stage in self.upsample:
            x, lengths = stage(x, walk, lengths)
        samples: Tensor = self.decoder(x, walk, lengths)
        samples = samples if samples.dtype == torch.float64 else samples.float()
        if behind is not None:
            samples = samples.view(rows, count, self.frame_samples).masked_fill(behind[..., None], 0.0).flatten(1)
        return samples, CodecHistory(
            history.positions + (count if frames is None else frames),
            tuple(each.keys for each in past),
            tuple(each.values for each in past),
            walk.done(),
        )
