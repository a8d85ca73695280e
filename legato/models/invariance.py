"""Which parts of a model give a row the same bits in any batch, so that many can be computed together even where that
is promised. Owns nothing.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import nn

from legato.models.code_predictor.predictor import CodePredictor
from legato.models.codec.decoder import CodecDecoder
from legato.models.native.frame import whole_frames
from legato.models.native.layers import NativeLayers
from legato.models.native.panels import Packed
from legato.models.talker.backbone import Talker


class BatchInvariant(NamedTuple):
    """Of each part, whether a row is the same in any company."""

    talker: bool
    predictor: bool
    codec: bool


def batch_invariant(talker: Talker, predictor: CodePredictor, decoder: CodecDecoder) -> BatchInvariant:
    """What is compiled computes every row by itself, in an order of its own; torch may choose the order by the batch.

    Of the talker that is everything up to the hidden state. The logits of codebook 0 are torch's.
    """
    maps = [part for part in talker.modules() if isinstance(part, nn.Linear) and part is not talker.codec_head]
    exact = talker.codec_head.weight.dtype == torch.float32
    return BatchInvariant(
        talker=exact and not maps and isinstance(talker.model.layers, NativeLayers),
        predictor=exact and whole_frames(predictor, torch.empty(0)) is not None,
        codec=isinstance(decoder.pre_conv, Packed),
    )
