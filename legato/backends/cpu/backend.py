"""The CPU backend: PyTorch modules whose linears, layers, frames and codec run in C kernels.

The kernels compute each row separately and in a fixed order of operations. Results of parts that run entirely in the
kernels are therefore bit-identical in any batch and for any number of threads.
"""

from __future__ import annotations

from typing import TypeVar

import torch
from torch import Tensor, nn

from legato.backends.base import BatchInvariance, FirstCodeInputs, FrameInputs
from legato.backends.cpu.codec import pack_decoder, unsupported_reason, uses_amx
from legato.backends.cpu.frame import frame_library, predict_frame_native, sample_first_native, sample_native
from legato.backends.cpu.lm import NativeLayers, NativeLinearBase, native_language, native_linear
from legato.backends.torch import TorchBackend
from legato.config.quantization import INT8
from legato.kernels.build import Unavailable
from legato.kernels.codec_library import CodecLibrary
from legato.kernels.library import Library, kernels_note
from legato.models.code_predictor.predict import first_inputs, first_kv_locations, frame_rope_tables
from legato.models.sampling import Sampled, SamplerSettings
from legato.models.talker.backbone import Talker
from legato.weights.loading import LoadedModel
from legato.weights.module_tree import shallow_copy

_Language = TypeVar("_Language", bound=nn.Module)


class CpuBackend(TorchBackend):
    """Executes `model` with the kernels of `library` and `codec`. Unsupported parts run in PyTorch."""

    name = "cpu"

    def __init__(self, model: LoadedModel, library: Library | Unavailable, codec: CodecLibrary | Unavailable) -> None:
        self._library = library
        super().__init__(model)
        if isinstance(library, Library):
            self.talker = _with_native_head(self.talker, library)
        self._codec_reason = codec.reason if isinstance(codec, Unavailable) else unsupported_reason(model.decoder)
        if isinstance(codec, CodecLibrary) and not self._codec_reason:
            self.decoder = pack_decoder(model.decoder, codec)
        self.batch_invariance = self._invariance()
        self.needs_torch_threads = not all(
            (self.batch_invariance.talker, self.batch_invariance.predictor, self.batch_invariance.codec)
        )

    def _executed(self, language: _Language) -> _Language:
        if not isinstance(self._library, Library):
            return super()._executed(language)
        native = native_language(language, self._library)
        return super()._executed(native)  # the rest, for example linears in a layout that the kernels do not support

    @property
    def description(self) -> tuple[str, ...]:
        """See `Backend`: one note for the layers, one for the codec."""
        if isinstance(self._library, Unavailable):
            layers = f"layers by PyTorch ({self._library.reason})"
        elif isinstance(self.talker.model.layers, NativeLayers):
            layers = f"layers by {kernels_note(amx=self._library.amx and self.model.quant == INT8)}"
        else:
            layers = "layers by PyTorch (the kernels do not take unquantized float32 checkpoints)"
        if self._codec_reason:
            return layers, f"codec by PyTorch ({self._codec_reason})"
        return layers, f"codec by {kernels_note(amx=uses_amx(self.decoder))}"

    def sample(self, logits: Tensor, settings: SamplerSettings, uniform: Tensor) -> Sampled:
        """See `Backend`."""
        library = frame_library(self.code_predictor, logits.dtype)
        if library is None:
            return super().sample(logits, settings, uniform)
        return sample_native(library, logits, settings, uniform)

    def sample_first_from_logits(self, logits: Tensor, inputs: FirstCodeInputs) -> Sampled:
        """See `Backend`."""
        library = frame_library(self.code_predictor, logits.dtype)
        if library is None:
            return super().sample_first_from_logits(logits, inputs)
        config = self.model.config
        return sample_first_native(
            library,
            logits,
            inputs.seen,
            frames=inputs.frames,
            allow_eos=inputs.allow_eos,
            repetition_penalty=inputs.repetition_penalty,
            codebook_size=config.code_predictor.codebook_size,
            eos=config.talker.ids.eos,
            settings=SamplerSettings(inputs.temperature, inputs.top_k, inputs.top_p),
            uniform=inputs.uniform,
        )

    def predict_frame(self, inputs: FrameInputs) -> Sampled:
        """See `Backend`. One kernel call per frame if the whole code predictor is native."""
        predictor = self.code_predictor
        library = frame_library(predictor, inputs.hidden.dtype)
        if library is None:
            return super().predict_frame(inputs)
        x = first_inputs(self.talker.model.codec_embedding, inputs.hidden, inputs.first_code)
        return predict_frame_native(
            library,
            predictor,
            x,
            first_kv_locations(predictor, x.shape[0], inputs.hidden),
            rope=frame_rope_tables(predictor, x),
            codes=inputs.first_code,
            settings=SamplerSettings(inputs.temperature, inputs.top_k, inputs.top_p),
            noise=inputs.noise,
        )

    def _invariance(self) -> BatchInvariance:
        """The kernels are batch-invariant. PyTorch's matmuls may sum in an order that depends on the batch size."""
        talker = self.talker
        linears = [part for part in talker.modules() if isinstance(part, nn.Linear) and part is not talker.codec_head]
        float32 = self.model.language_dtype == torch.float32
        native_frames = float32 and frame_library(self.code_predictor, torch.float32) is not None
        return BatchInvariance(
            talker=float32 and not linears and isinstance(talker.model.layers, NativeLayers),
            first_code=native_frames and isinstance(talker.codec_head, NativeLinearBase),
            predictor=native_frames,
            codec=not self._codec_reason,
        )


def _with_native_head(talker: Talker, library: Library) -> Talker:
    """The talker with a native head for codebook 0, if the head is float32 and the layers before it are native."""
    head = talker.codec_head
    native_layers = isinstance(talker.model.layers, NativeLayers)
    if not native_layers or head.weight.dtype != torch.float32 or not head.weight.is_contiguous():
        return talker
    with_head = shallow_copy(talker)
    with_head._modules["codec_head"] = native_linear(head, library)
    return with_head
