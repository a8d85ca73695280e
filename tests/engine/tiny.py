"""Tiny models for tests: a letter front end, and a talker, code predictor and codec that fit together.

Weights are created once and shared. Nothing here has state.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import torch

from legato.backends.torch import TorchBackend
from legato.config.model import (
    CodecConfig,
    CodePredictorConfig,
    GenerationDefaults,
    LanguageIds,
    ModelConfig,
    TalkerConfig,
)
from legato.errors import StateError
from legato.models.code_predictor.predictor import CodePredictor
from legato.models.codec.decoder import CodecDecoder
from legato.models.talker.backbone import Talker
from legato.types import SamplingParams, WordSpan
from legato.weights.loading import LoadedModel
from tests.models.codec import tiny_codec
from tests.models.tiny_talker import BPE, CODEBOOKS, CODES, make_predictor, make_talker, stack, talker_config


class LetterTokenizer:
    """Tokenizer whose tokens are letters, committed immediately."""

    def __init__(self) -> None:
        self.tokens: list[tuple[int, ...]] = []
        self.ended = False
        self.words: Sequence[WordSpan] = ()

    def append(self, text: str) -> None:
        if self.ended:
            raise StateError("appended after the end")
        self.tokens += [(8 + ord(letter) % 32,) for letter in text]

    def end(self) -> None:
        self.ended = True


@lru_cache(maxsize=1)
def tiny_decoder() -> CodecDecoder:
    """Codec for the codes of the tiny talker."""
    sizes = replace(tiny_codec.DECODER, num_quantizers=CODEBOOKS, codebook_size=CODES)
    return tiny_codec.tiny_decoder(sizes, dtype=torch.float32)


@lru_cache(maxsize=1)
def tiny_config() -> ModelConfig:
    """A tiny model like a Base checkpoint: BPE text, an EOS code, language tags."""
    tags = LanguageIds(think=CODES + 3, nothink=CODES + 4, think_bos=CODES + 5, think_eos=CODES + 6, languages={})
    talker: TalkerConfig = replace(talker_config(BPE), language_ids=tags)
    decoder = tiny_decoder()
    return ModelConfig(
        kind="base",
        size="tiny",
        talker=talker,
        code_predictor=CodePredictorConfig(stack=stack(layers=2), codebook_size=CODES, num_codebooks=CODEBOOKS),
        speaker_encoder=None,
        codec=CodecConfig(24000, decoder.frame_samples, decoder.config, None),
        generation=GenerationDefaults(SamplingParams(0.9, 12, 1.0, 1.05, 0.9, 12, 1.0), 8192),
    )


@lru_cache(maxsize=1)
def tiny_talker() -> Talker:
    """The talker; it has no state, so all tests share it."""
    return make_talker(tiny_config().talker)


@lru_cache(maxsize=1)
def tiny_predictor() -> CodePredictor:
    """The code predictor, shared in the same way."""
    return make_predictor()


def tiny_model() -> LoadedModel:
    """The tiny talker, code predictor and decoder as a loaded model."""
    return LoadedModel(Path(), tiny_config(), tiny_talker(), tiny_predictor(), tiny_decoder())


def tiny_backend() -> TorchBackend:
    """The tiny model executed by PyTorch."""
    return TorchBackend(tiny_model())
