"""The PyTorch backend: the reference modules, with faster quantized linears where PyTorch has kernels for them.

It runs on any device. The CPU backend derives from it, and replaces modules and methods by C kernels.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

import torch
from torch import Tensor, nn

from legato.backends.base import BatchInvariance, FirstCodeInputs, FrameInputs
from legato.backends.torch_quantized import TorchKernels, torch_linear
from legato.config.quantization import INT8, NONE
from legato.models.code_predictor.predict import predict_frame, sample_first_code
from legato.models.codec.state import CodecHistory, CodecRows, CodecStatePool
from legato.models.sampling import Sampled, SamplerSettings, sample
from legato.models.talker.embed import next_input
from legato.models.talker.state import KVRows, TalkerCache
from legato.weights.loading import LoadedModel
from legato.weights.module_tree import replace_modules, without_replaced_weights
from legato.weights.quantized_linear import Int4Linear, Int8Linear, dense_linear

_Language = TypeVar("_Language", bound=nn.Module)


class TorchBackend:
    """Executes the modules of `model` in PyTorch. `reason`: why the C kernels are not used, for the description."""

    name = "torch"
    decodes_in_place = False
    needs_torch_threads = True

    def __init__(self, model: LoadedModel, *, reason: str = "", kernels: TorchKernels | None = None) -> None:
        self.model = model
        self._torch_kernels = kernels or TorchKernels.detect()
        self._reason = reason
        self.talker = self._executed(model.talker)
        self.code_predictor = self._executed(model.code_predictor)
        self.decoder = model.decoder
        self.batch_invariance = BatchInvariance()

    def _executed(self, language: _Language) -> _Language:
        """A copy of `language` to execute: quantized linears use PyTorch's kernels, other linears the compute dtype."""
        dtype, kernels = self.model.language_dtype, self._torch_kernels

        def replacement(_name: str, child: nn.Module) -> nn.Module | None:
            if isinstance(child, Int8Linear | Int4Linear):
                return torch_linear(child, kernels, dtype)
            if isinstance(child, nn.Linear) and child.weight.dtype != dtype:
                return dense_linear(child.weight.detach(), child.bias, dtype)
            return None

        return replace_modules(language, replacement)

    def release_replaced_weights(self) -> None:
        """Release the reference weights of which this backend executes a packed or converted copy.

        Only verification runs the reference modules after loading. The released weights of `model` are meta tensors.
        """
        model = self.model
        self.model = replace(
            model,
            talker=without_replaced_weights(model.talker, self.talker),
            code_predictor=without_replaced_weights(model.code_predictor, self.code_predictor),
            decoder=without_replaced_weights(model.decoder, self.decoder),
        )

    @property
    def description(self) -> tuple[str, ...]:
        """See `Backend`."""
        because = f" ({self._reason})" if self._reason else ""
        return (f"PyTorch on {self.model.device}{because}{self._quantized_note()}",)

    def _quantized_note(self) -> str:
        quant, kernels = self.model.quant, self._torch_kernels
        if quant == NONE:
            return ""
        if not (kernels.int8 if quant == INT8 else kernels.int4):
            return f"; no fast {quant} kernels here: the dequantized weights are used"
        if quant == INT8 and not kernels.vnni:
            return "; activations are quantized to 7 bits (no VNNI)"
        return ""

    @property
    def input_device(self) -> torch.device:
        """See `Backend`."""
        return self.model.device

    def prefill(
        self, cache: TalkerCache, rows: KVRows, x: Tensor, starts: Tensor, lengths: Tensor | None, *, span: int
    ) -> Tensor:
        """See `Backend`."""
        hidden: Tensor = self.talker.forward(cache, rows, x, starts, lengths, span=span)
        return hidden

    def decode_step(
        self, cache: TalkerCache, frames: Tensor, tokens: Tensor, rows: KVRows, positions: Tensor, *, span: int
    ) -> Tensor:
        """See `Backend`."""
        x = next_input(self.talker, self.code_predictor, frames, tokens)
        hidden: Tensor = self.talker.forward(cache, rows, x[:, None], positions, span=span)
        return hidden

    def sample(self, logits: Tensor, settings: SamplerSettings, uniform: Tensor) -> Sampled:
        """See `Backend`."""
        return sample(logits, settings, uniform)

    def sample_first(self, inputs: FirstCodeInputs) -> Sampled:
        """See `Backend`."""
        return self.sample_first_from_logits(self.talker.first_code_logits(inputs.hidden), inputs)

    def sample_first_from_logits(self, logits: Tensor, inputs: FirstCodeInputs) -> Sampled:
        """See `Backend`."""
        return sample_first_code(
            self.code_predictor,
            logits,
            inputs.seen,
            frames=inputs.frames,
            allow_eos=inputs.allow_eos,
            repetition_penalty=inputs.repetition_penalty,
            eos=self.model.config.talker.ids.eos,
            settings=SamplerSettings(inputs.temperature, inputs.top_k, inputs.top_p),
            uniform=inputs.uniform,
        )

    def predict_frame(self, inputs: FrameInputs) -> Sampled:
        """See `Backend`."""
        return predict_frame(
            self.code_predictor,
            self.talker.model.codec_embedding,
            inputs.hidden,
            inputs.first_code,
            settings=SamplerSettings(inputs.temperature, inputs.top_k, inputs.top_p),
            noise=inputs.noise,
        )

    def decode_codec(self, history: CodecHistory, codes: Tensor, frames: Tensor | None) -> tuple[Tensor, CodecHistory]:
        """See `Backend`."""
        return self.decoder.forward(history, codes, frames)

    def decode_codec_in_place(self, states: CodecStatePool, rows: CodecRows, codes: Tensor, frames: Tensor) -> Tensor:
        """See `Backend`."""
        samples, history = self.decode_codec(states.gather(rows), codes, frames)
        states.scatter(rows, history)
        return samples
