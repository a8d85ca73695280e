"""The codec decoder: codes to samples, in windows of any number of frames.

The history of a stream is an argument and a result. Decoding a whole utterance is the same code path: one window from
the initial history. There is no look-ahead and no flush: each frame yields `frame_samples` final samples.
Modules and weights have the names of the official speech tokenizer's `decoder.`, except that each codebook is stored as
one table (see `codec/quantizer.py`).
"""

from __future__ import annotations

from math import prod

import torch
from torch import Tensor, nn

from legato.config.model import CodecDecoderConfig
from legato.models.codec.quantizer import SplitQuantizer
from legato.models.codec.state import CodecHistory
from legato.models.codec.transformer import FrameTransformer
from legato.models.codec.upsample import UpsampleStage, WaveformDecoder
from legato.models.layers.attention import KeyValues
from legato.models.layers.conv import CausalConv1d, ConvHistories, history_shapes

PRE_CONV_KERNEL = 3
"""Fixed in the official code; not part of the JSON configuration."""


class CodecDecoder(nn.Module):
    """Codes [B, T, Q] to samples in [-1, 1]."""

    def __init__(self, config: CodecDecoderConfig) -> None:
        super().__init__()
        self.config = config
        self.frame_samples = prod(config.upsampling_ratios) * prod(config.upsample_rates)
        self.quantizer = SplitQuantizer(config)
        self.pre_conv = CausalConv1d(config.codebook_dim, config.latent_dim, PRE_CONV_KERNEL)
        self.pre_transformer = FrameTransformer(config)
        self.upsample = nn.ModuleList(UpsampleStage(config.latent_dim, ratio) for ratio in config.upsampling_ratios)
        self.decoder = WaveformDecoder(config.latent_dim, config.decoder_dim, config.upsample_rates)

    @property
    def dtype(self) -> torch.dtype:
        """Compute dtype. The codebook tables may be wider."""
        return self.pre_transformer.norm.weight.dtype

    def initial_history(
        self, batch: int, dtype: torch.dtype | None = None, device: torch.device | str | None = None
    ) -> CodecHistory:
        """History of `batch` streams before their first frame. `dtype`, `device`: those of the weights by default."""
        weight = self.pre_transformer.norm.weight
        dtype, device = dtype or weight.dtype, device or weight.device
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
        """Decode the next window of each stream.

        `codes` int64 [B, T, Q], each in the range of its codebook (`check_codes`). `frames` int64 [B]: number of valid
        frames of each row, at most T; None: all T. Returns samples [B, T * frame_samples], float32 (float64 for a
        float64 decoder), zero after a row's valid frames; and the history after the valid frames.
        The arithmetic is that of the 12 Hz tokenizer in the official package (`qwen-tts` 0.1.1), which decodes whole
        signals.
        """
        rows, count, _ = codes.shape
        padding = None if frames is None else torch.arange(count, device=codes.device) >= frames[:, None]
        if padding is not None:
            codes = codes.masked_fill(padding[..., None], 0)
        histories = ConvHistories(history.convs)
        x = histories.run(self.pre_conv, self.quantizer(codes), frames)
        past = [KeyValues(*each) for each in zip(history.keys, history.values, strict=True)]
        x, past = self.pre_transformer(x, past, history.positions, frames)
        lengths = frames
        for stage in self.upsample:
            x, lengths = stage(x, histories, lengths)
        samples: Tensor = self.decoder(x, histories, lengths)
        samples = samples if samples.dtype == torch.float64 else samples.float()
        if padding is not None:
            samples = samples.view(rows, count, self.frame_samples).masked_fill(padding[..., None], 0.0).flatten(1)
        return samples, CodecHistory(
            history.positions + (count if frames is None else frames),
            tuple(each.keys for each in past),
            tuple(each.values for each in past),
            histories.updated(),
        )
