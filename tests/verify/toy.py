"""A whole model in miniature for the checks: toy talker, predictor and codec, letters for text. For tests alone.

Everything runs in milliseconds; the weights are live, so that every fault shows.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from legato.engine.voices import VoiceStore
from legato.flow import TextToken, TextTrack
from legato.models.codec.decoder import CodecDecoder
from legato.models.layers.quantized import Kernels
from legato.models.load import LoadedModel
from legato.models.native.library import Missing, library
from legato.models.quantize import run_stores, stores
from legato.text.segment import SegmentRule
from legato.verify.partitions import ESSENTIAL
from legato.verify.subject import Depth, Subject
from tests.engine.harness import LONG
from tests.engine.tiny import LetterTrack, tiny_config, tiny_decoder, tiny_predictor, tiny_talker

DEPTH = Depth(
    "test",
    decode_frames=24,
    partitions=ESSENTIAL,
    layer_frames=20,
    talker_positions=30,
    predictor_rows=3,
    company=2,
    speech_frames=6,
    text_cuts=2,
)


@dataclass(frozen=True, slots=True)
class LetterFrontEnd:
    """A letter is a token."""

    segments: SegmentRule = LONG
    ends_with_track: bool = False
    changes_speed: bool = False

    def track(self, speaker: str, speed: float = 1.0) -> TextTrack:  # noqa: ARG002
        return LetterTrack()

    def instruct(self, text: str) -> tuple[TextToken, ...]:
        return tuple((8 + ord(letter) % 32,) for letter in text)

    def reference(self, transcript: str) -> tuple[TextToken, ...]:
        return self.instruct(transcript)


class PieceTrack(LetterTrack):
    """A tokenizer that reads every piece by itself: its tokens depend on where the text was cut."""

    def append(self, text: str) -> None:
        super().append(text)
        self.tokens.append((8 + len(text) % 8,))


@dataclass(frozen=True, slots=True)
class PieceFrontEnd(LetterFrontEnd):
    """A front end that breaks its promise."""

    def track(self, speaker: str, speed: float = 1.0) -> TextTrack:  # noqa: ARG002
        return PieceTrack()


def toy_model(decoder: CodecDecoder | None = None, *, in_bfloat16: bool = False) -> LoadedModel:
    """A model that needs an instruction and no reference; in bfloat16 its codec stays in float32."""
    config = replace(tiny_config(), kind="voice_design")
    talker, predictor = tiny_talker(), tiny_predictor()
    if in_bfloat16:
        talker, predictor = copy.deepcopy(talker).bfloat16(), copy.deepcopy(predictor).bfloat16()
    return LoadedModel(Path(), config, talker, predictor, decoder or tiny_decoder(), None, None, None)


def toy_rounded_model(quant: str) -> LoadedModel:
    """The same with rounded weights, computed as this machine does it."""
    talker, predictor = copy.deepcopy(tiny_talker()), copy.deepcopy(tiny_predictor())
    for language in (talker, predictor):
        stores(language, quant)
        run_stores(language, Kernels.here(), torch.float32, library() if quant == "int8" else Missing("4 bits"))
    return replace(toy_model(), talker=talker, code_predictor=predictor, quant=quant)


def toy_subject(
    model: LoadedModel | None = None, *, depth: Depth = DEPTH, front_end: LetterFrontEnd | None = None
) -> Subject:
    """What a group of checks takes."""
    chosen = model or toy_model()
    voices = VoiceStore(chosen.decoder, None, None, limit_bytes=1)
    return Subject(chosen, front_end or LetterFrontEnd(), voices, depth, seed=0)
