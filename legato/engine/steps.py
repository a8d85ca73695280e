"""The arithmetic of a step, from tensors to tensors: the talker's next position, the first code, the rest of the frame.

Owns nothing: weights and cache are borrowed. Knows no sequence: rows are what the caller says they are. Call by call
here; `graphs` records the same functions.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from legato.config.model import ModelConfig
from legato.models.code_predictor.predict import draw_first_code, predict_frame
from legato.models.code_predictor.predictor import CodePredictor
from legato.models.sampling import Drawn, DrawSettings
from legato.models.talker.backbone import Talker
from legato.models.talker.embed import next_input
from legato.models.talker.state import KVRows, TalkerCache


class FirstCodeInputs(NamedTuple):
    """What codebook 0 is drawn from, a row each: `hidden` [B, D]; the rest as in `models.sampling`."""

    hidden: Tensor
    seen: Tensor
    frames: Tensor
    allow_eos: Tensor
    temperature: Tensor
    top_k: Tensor
    top_p: Tensor
    repetition_penalty: Tensor
    uniform: Tensor


class FrameInputs(NamedTuple):
    """What the other codes are drawn from, a row each: see `predict_frame`."""

    hidden: Tensor
    first_code: Tensor
    temperature: Tensor
    top_k: Tensor
    top_p: Tensor
    noise: Tensor


class StepCompute(Protocol):
    """The three functions of a step, however they are launched. Each gives a row for each row it gets."""

    @property
    def home(self) -> torch.device:
        """Where inputs that the host makes are wanted."""

    def talker(self, frames: Tensor, tokens: Tensor, rows: KVRows, positions: Tensor, *, span: int) -> Tensor:
        """Hidden [B, D] after `frames` [B, Q] and text `tokens` were fed at `positions` [B], all below `span`."""

    def first_codes(self, given: FirstCodeInputs) -> Drawn:
        """Codebook 0, the end of speech included."""

    def frames(self, given: FrameInputs) -> Drawn:
        """All codes of a frame [B, Q]."""


class Steps:
    """Call by call."""

    def __init__(self, config: ModelConfig, talker: Talker, predictor: CodePredictor, cache: TalkerCache) -> None:
        self.config = config
        self.dtype = talker.codec_head.weight.dtype
        self.home = talker.codec_head.weight.device
        self._talker, self._predictor, self._cache = talker, predictor, cache

    def talker(self, frames: Tensor, tokens: Tensor, rows: KVRows, positions: Tensor, *, span: int) -> Tensor:
        """See `StepCompute`."""
        x = next_input(self._talker, self._predictor, frames, tokens)
        hidden: Tensor = self._talker.forward(self._cache, rows, x[:, None], positions, span=span)
        return hidden

    def first_codes(self, given: FirstCodeInputs) -> Drawn:
        """See `StepCompute`."""
        return draw_first_code(
            self._predictor,
            self._talker.first_code_logits(given.hidden),
            given.seen,
            frames=given.frames,
            allow_eos=given.allow_eos,
            repetition_penalty=given.repetition_penalty,
            eos=self.config.talker.ids.eos,
            settings=DrawSettings(given.temperature, given.top_k, given.top_p),
            uniform=given.uniform,
        )

    def frames(self, given: FrameInputs) -> Drawn:
        """See `StepCompute`."""
        return predict_frame(
            self._predictor,
            self._talker.model.codec_embedding,
            given.hidden,
            given.first_code,
            settings=DrawSettings(given.temperature, given.top_k, given.top_p),
            noise=given.noise,
        )
