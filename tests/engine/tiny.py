"""Tiny parts for a loop: letters for text, a talker, a code predictor and a codec that fit each other.

For tests alone. Weights are made once for all of them; nothing here has state.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

import torch

from legato.config.model import (
    CodecConfig,
    CodePredictorConfig,
    GenerationDefaults,
    LanguageIds,
    ModelConfig,
    TalkerConfig,
)
from legato.errors import StateError
from legato.flow import WordSpan
from legato.models.code_predictor.predictor import CodePredictor
from legato.models.codec.decoder import CodecDecoder
from legato.models.talker.backbone import Talker
from tests.models.codec import tiny_codec
from tests.models.tiny_talker import BPE, CODEBOOKS, CODES, make_predictor, make_talker, stack, talker_config


class LetterTrack:
    """A front end whose tokens are letters, committed at once."""

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
    """A codec for the tiny talker's codes."""
    sizes = replace(tiny_codec.DECODER, num_quantizers=CODEBOOKS, codebook_size=CODES)
    return tiny_codec.tiny_decoder(sizes, dtype=torch.float32)


@lru_cache(maxsize=1)
def tiny_config() -> ModelConfig:
    """A base-like model of tiny sizes: BPE text, an end code, language tags."""
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
        generation=GenerationDefaults(0.9, 12, 1.0, 1.05, 0.9, 12, 1.0, 8192),
    )


@lru_cache(maxsize=1)
def tiny_talker() -> Talker:
    """Weights alone, so one serves every harness."""
    return make_talker(tiny_config().talker)


@lru_cache(maxsize=1)
def tiny_predictor() -> CodePredictor:
    """As above."""
    return make_predictor()
