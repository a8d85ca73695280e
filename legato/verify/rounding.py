"""What rounded weights change: logits of every codebook against those of the same checkpoint in float32.

No check and no limit: rounding is a choice, and this says what it costs. Inputs are fixed tokens and frames, so both
models answer the same questions. Owns nothing; knows no engine.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from legato.models.code_predictor.predict import predict_frame_whole_logits
from legato.verify.subject import Subject
from legato.verify.talker import talker_inputs


@dataclass(frozen=True, slots=True)
class Change:
    """One codebook: the root mean square of the change as a share of the logits' spread, and equal first choices."""

    codebook: int
    error: float
    agreement: float
    """Share of positions at which both have the same likeliest code."""


def measure_changes(exact: Subject, rounded: Subject, positions: int) -> list[Change]:
    """All codebooks over `positions` positions of fixed inputs; predictors hear their own talker."""
    with torch.inference_mode():
        x = talker_inputs(exact, positions, 1)
        codes = exact.codes(positions, salt=6)[0, :, : exact.model.config.talker.num_codebooks]
        pairs = zip(_logits(exact, x, codes), _logits(rounded, x, codes), strict=True)
        return [_change(codebook, *pair) for codebook, pair in enumerate(pairs)]


def _logits(subject: Subject, x: Tensor, codes: Tensor) -> list[Tensor]:
    """Logits of each codebook [P, V] along fixed inputs and codes."""
    talker, predictor = subject.model.talker, subject.model.code_predictor
    hidden = talker.forward_whole(x)[0]
    residual = predict_frame_whole_logits(predictor, talker.model.codec_embedding, hidden, codes)
    return [talker.first_code_logits(hidden), *residual.unbind(1)]


def _change(codebook: int, exact: Tensor, rounded: Tensor) -> Change:
    spread = (exact - exact.mean(-1, keepdim=True)).square().mean().sqrt()
    error = (rounded - exact).square().mean().sqrt() / spread
    same = (rounded.argmax(-1) == exact.argmax(-1)).float().mean()
    return Change(codebook, float(error), float(same))
