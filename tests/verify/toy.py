"""A toy model for the tests of the checks: tiny talker, code predictor and codec; each letter is a text token.

Runs in milliseconds. Random weights make every fault visible in the output.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from pathlib import Path

from legato.backends.base import Backend
from legato.backends.cpu.backend import CpuBackend
from legato.backends.torch import TorchBackend
from legato.engine.voice_cache import VoiceCache
from legato.kernels.build import Unavailable
from legato.kernels.library import library
from legato.models.codec.decoder import CodecDecoder
from legato.text.segmenter import SegmentRule
from legato.types import IncrementalTokenizer, TextToken
from legato.verify.target import ESSENTIAL, Depth, Target
from legato.weights.loading import LoadedModel
from legato.weights.quantization import quantize_modules
from tests.engine.harness import LONG
from tests.engine.tiny import LetterTokenizer, tiny_config, tiny_decoder, tiny_predictor, tiny_talker

DEPTH = Depth(
    "test",
    decode_frames=24,
    partitions=ESSENTIAL,
    layer_frames=20,
    talker_positions=30,
    predictor_rows=3,
    co_batched_streams=2,
    speech_frames=6,
    text_splits=2,
)


@dataclass(frozen=True, slots=True)
class LetterFrontEnd:
    """Each letter is a token."""

    segment_rule: SegmentRule = LONG
    ends_with_text: bool = False
    supports_speed: bool = False

    def new_tokenizer(self, speaker: str, speed: float = 1.0) -> IncrementalTokenizer:  # noqa: ARG002
        return LetterTokenizer()

    def encode_instruction(self, text: str) -> tuple[TextToken, ...]:
        return tuple((8 + ord(letter) % 32,) for letter in text)

    def encode_transcript(self, transcript: str) -> tuple[TextToken, ...]:
        return self.encode_instruction(transcript)


class PieceTokenizer(LetterTokenizer):
    """Tokens depend on where the text is split: each piece adds a token of its own."""

    def append(self, text: str) -> None:
        super().append(text)
        self.tokens.append((8 + len(text) % 8,))


@dataclass(frozen=True, slots=True)
class PieceFrontEnd(LetterFrontEnd):
    """A front end whose tokens depend on the split."""

    def new_tokenizer(self, speaker: str, speed: float = 1.0) -> IncrementalTokenizer:  # noqa: ARG002
        return PieceTokenizer()


def toy_model(decoder: CodecDecoder | None = None, *, in_bfloat16: bool = False) -> LoadedModel:
    """A voice-design model (no reference needed). With `in_bfloat16` the codec stays in float32."""
    config = replace(tiny_config(), kind="voice_design")
    talker, predictor = tiny_talker(), tiny_predictor()
    if in_bfloat16:
        talker, predictor = copy.deepcopy(talker).bfloat16(), copy.deepcopy(predictor).bfloat16()
    return LoadedModel(Path(), config, talker, predictor, decoder or tiny_decoder())


def toy_backend() -> Backend:
    """The toy model executed by PyTorch."""
    return TorchBackend(toy_model())


def toy_quantized_backend(quant: str) -> Backend:
    """The same with quantized weights: int8 by the kernels of this machine, int4 by PyTorch."""
    model = toy_model()
    quantized = replace(
        model,
        talker=quantize_modules(model.talker, quant),
        code_predictor=quantize_modules(model.code_predictor, quant),
        quant=quant,
    )
    if quant == "int8":
        return CpuBackend(quantized, library(), Unavailable("the test says so"))
    return TorchBackend(quantized)


def toy_target(
    model: Backend | LoadedModel | None = None, *, depth: Depth = DEPTH, front_end: LetterFrontEnd | None = None
) -> Target:
    """A target for the checks."""
    chosen = model or toy_model()
    backend = TorchBackend(chosen) if isinstance(chosen, LoadedModel) else chosen
    voices = VoiceCache(backend.decoder, None, None, limit_bytes=1)
    return Target(backend, front_end or LetterFrontEnd(), voices, depth, seed=0)
