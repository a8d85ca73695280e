"""The `Backend` protocol: how a loaded model is executed. The engine, verification and benchmarks use the same object.

A backend is built from the reference modules of a `LoadedModel`. It may execute packed or replaced copies of them, but
it never modifies the modules themselves.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from legato.models.code_predictor.predictor import CodePredictor
from legato.models.codec.decoder import CodecDecoder
from legato.models.codec.state import CodecHistory, CodecRows, CodecStatePool
from legato.models.sampling import Sampled, SamplerSettings
from legato.models.talker.backbone import Talker
from legato.models.talker.state import KVRows, TalkerCache
from legato.weights.loading import LoadedModel


class FirstCodeInputs(NamedTuple):
    """Inputs for sampling codebook 0, one row per sequence.

    `hidden` [B, D]: the talker's last hidden state. The other fields are those of `models.sampling`.
    """

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
    """Inputs for predicting codebooks 1 to Q - 1 of a frame, one row per sequence: see `predict_frame`."""

    hidden: Tensor
    first_code: Tensor
    temperature: Tensor
    top_k: Tensor
    top_p: Tensor
    noise: Tensor


@dataclass(frozen=True, slots=True)
class BatchInvariance:
    """Operations whose results for a row are bit-identical in any batch.

    `talker`: the hidden state. `first_code`: sampling of codebook 0. `predictor`: the other codebooks. `codec`: the
    samples.
    """

    talker: bool = False
    first_code: bool = False
    predictor: bool = False
    codec: bool = False

    @property
    def complete(self) -> bool:
        """Whether codes and samples of a stream do not depend on the other streams."""
        return self.talker and self.first_code and self.predictor and self.codec


class Backend(Protocol):
    """Executes one model. State (KV cache, codec history) is passed in; results have one row per input row."""

    @property
    def name(self) -> str:
        """ "torch", "cpu" or "cuda_graphs"."""

    @property
    def model(self) -> LoadedModel:
        """The configuration and the reference modules; see `load_backend` for the weights that these may lack."""

    @property
    def talker(self) -> Talker:
        """The talker that is executed. It has the interface of the reference module."""

    @property
    def code_predictor(self) -> CodePredictor:
        """The code predictor that is executed."""

    @property
    def decoder(self) -> CodecDecoder:
        """The codec decoder that is executed."""

    @property
    def batch_invariance(self) -> BatchInvariance:
        """The operations whose results do not depend on batch composition."""

    @property
    def description(self) -> tuple[str, ...]:
        """Kernels and devices in use, as short notes for logs and records."""

    @property
    def needs_torch_threads(self) -> bool:
        """Whether torch computes enough on the CPU to use several threads; False where kernels compute everything."""

    @property
    def input_device(self) -> torch.device:
        """Device on which callers should create inputs."""

    @property
    def decodes_in_place(self) -> bool:
        """Whether the engine should call `decode_codec_in_place` instead of `decode_codec`."""

    def prefill(
        self, cache: TalkerCache, rows: KVRows, x: Tensor, starts: Tensor, lengths: Tensor | None, *, span: int
    ) -> Tensor:
        """Hidden states [B, D] after the prompt inputs `x` [B, T, D]; arguments as for `Talker.forward`."""

    def decode_step(
        self, cache: TalkerCache, frames: Tensor, tokens: Tensor, rows: KVRows, positions: Tensor, *, span: int
    ) -> Tensor:
        """Hidden states [B, D] after `frames` [B, Q] and text `tokens` at `positions` [B], all less than `span`."""

    def sample(self, logits: Tensor, settings: SamplerSettings, uniform: Tensor) -> Sampled:
        """Sample one code per row from `logits` [B, V]; see `models.sampling.sample`."""

    def sample_first(self, inputs: FirstCodeInputs) -> Sampled:
        """Sample codebook 0 or end of speech."""

    def sample_first_from_logits(self, logits: Tensor, inputs: FirstCodeInputs) -> Sampled:
        """`sample_first` from the talker's `logits` [B, V]; ignores `inputs.hidden`."""

    def predict_frame(self, inputs: FrameInputs) -> Sampled:
        """All codes of a frame [B, Q]."""

    def decode_codec(self, history: CodecHistory, codes: Tensor, frames: Tensor | None) -> tuple[Tensor, CodecHistory]:
        """Samples of `codes` [B, T, Q] and the next history; arguments as for `CodecDecoder.forward`."""

    def decode_codec_in_place(self, states: CodecStatePool, rows: CodecRows, codes: Tensor, frames: Tensor) -> Tensor:
        """Like `decode_codec`, with the histories of `rows` read from and written to `states`."""


def description_of(backend: Backend, *, cuda_graphs: bool | None = None) -> str:
    """The quantization note and `backend.description` on one line, for records.

    `cuda_graphs`: whether the engine captures graphs on CUDA; None if there is no engine.
    """
    parts = [backend.model.quant_note, *backend.description]
    if cuda_graphs is not None and backend.model.device.type == "cuda" and backend.name != "cuda_graphs":
        parts.append("CUDA graphs" if cuda_graphs else "no CUDA graphs")
    return "; ".join(part for part in parts if part)
