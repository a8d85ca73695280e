"""Text front end of a checkpoint: creates incremental tokenizers, and encodes instructions and transcripts.

A front end holds the BPE tokenizer or the duration model, and lives as long as the engine.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from legato.config.model import BpeTextConfig, PhoneTextConfig
from legato.errors import StateError, UnsupportedError
from legato.models.durations import SpeakerDurations
from legato.text.english.frontend import english_g2p
from legato.text.english.phone_tokenizer import PhoneTokenizer
from legato.text.segmenter import EMBEDDED_RULE, OFFICIAL_RULE, SegmentRule
from legato.text.tokenizer import BpeTokenizer, IncrementalBpeTokenizer
from legato.types import IncrementalTokenizer, TextToken
from legato.weights.loading import LoadedModel


class FrontEnd(Protocol):
    """Text front end of one kind of checkpoint."""

    @property
    def segment_rule(self) -> SegmentRule:
        """Rule for cutting text into segments."""

    @property
    def ends_with_text(self) -> bool:
        """True if a sequence ends after the frame of its last text token, not by an EOS code."""

    @property
    def supports_speed(self) -> bool:
        """True if `new_tokenizer` supports a `speed` other than 1."""

    def new_tokenizer(self, speaker: str, speed: float = 1.0) -> IncrementalTokenizer:
        """Create the tokenizer of one sequence. `speed` is 1 unless `supports_speed`."""

    def encode_instruction(self, text: str) -> tuple[TextToken, ...]:
        """Tokens of an instruction block."""

    def encode_transcript(self, transcript: str) -> tuple[TextToken, ...]:
        """Tokens of the transcript of a reference recording."""


@dataclass(frozen=True, slots=True)
class BpeFrontEnd:
    """Front end of the official models: byte-level BPE."""

    tokenizer: BpeTokenizer
    segment_rule: SegmentRule = OFFICIAL_RULE
    ends_with_text: bool = False
    supports_speed: bool = False

    def new_tokenizer(self, speaker: str, speed: float = 1.0) -> IncrementalTokenizer:  # noqa: ARG002  the tokens depend on neither
        return IncrementalBpeTokenizer(self.tokenizer)

    def encode_instruction(self, text: str) -> tuple[TextToken, ...]:
        return self.tokenizer.encode_instruction(text)

    def encode_transcript(self, transcript: str) -> tuple[TextToken, ...]:
        return self.tokenizer.encode_transcript(transcript)


@dataclass(frozen=True, slots=True)
class PhoneFrontEnd:
    """Front end of the embedded voice: English phones with predicted durations, aligned to frames."""

    text: PhoneTextConfig
    durations: dict[str, SpeakerDurations]
    segment_rule: SegmentRule = EMBEDDED_RULE
    ends_with_text: bool = True
    supports_speed: bool = True

    def new_tokenizer(self, speaker: str, speed: float = 1.0) -> IncrementalTokenizer:
        return PhoneTokenizer(self.text, self.durations[speaker], speed=speed)

    def encode_instruction(self, text: str) -> tuple[TextToken, ...]:  # noqa: ARG002
        raise UnsupportedError("the embedded voice does not support instruct; leave it empty", field="instruct")

    def encode_transcript(self, transcript: str) -> tuple[TextToken, ...]:  # noqa: ARG002
        raise UnsupportedError("the embedded voice cannot clone; load a Base checkpoint", field="clone")


def create_front_end(model: LoadedModel) -> FrontEnd:
    """Create the front end for the checkpoint's text config."""
    text = model.config.talker.text
    if isinstance(text, BpeTextConfig):
        return BpeFrontEnd(BpeTokenizer.load(model.folder))
    if model.durations is None:
        raise StateError("a checkpoint with phone input was loaded without its duration model")
    english_g2p()  # open the lexicon now, so that the first request does not wait for it
    speakers = enumerate(model.config.talker.speakers)
    return PhoneFrontEnd(text, {name: SpeakerDurations(model.durations, index) for index, name in speakers})
