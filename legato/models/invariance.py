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
from legato.models.native.layers import NativeLayers, NativeMap
from legato.models.native.panels import Packed
from legato.models.talker.backbone import Talker


class BatchInvariant(NamedTuple):
    """Of each part, whether a row is the same in any company: the talker up to its hidden state, the draw of
    codebook 0, the rest of a frame, the codec."""

    talker: bool
    first_code: bool
    predictor: bool
    codec: bool


def batch_invariant(talker: Talker, predictor: CodePredictor, decoder: CodecDecoder) -> BatchInvariant:
    """What is compiled computes every row by itself, in one order; torch may choose the order by the batch."""
    maps = [part for part in talker.modules() if isinstance(part, nn.Linear) and part is not talker.codec_head]
    exact = talker.codec_head.weight.dtype == torch.float32
    frames = exact and whole_frames(predictor, torch.empty(0)) is not None
    return BatchInvariant(
        talker=exact and not maps and isinstance(talker.model.layers, NativeLayers),
        first_code=frames and isinstance(talker.codec_head, NativeMap),
        predictor=frames,
        codec=isinstance(decoder.pre_conv, Packed),
    )
