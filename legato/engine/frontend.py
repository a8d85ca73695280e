"""Text front end of a checkpoint: creates a text track for each sequence, and tokenizes instructions and transcripts.

A front end holds the tokenizer or the duration model and lives as long as the engine.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from legato.config.model import BpeTextConfig, PhoneTextConfig
from legato.errors import StateError, UnsupportedError
from legato.models.durations import SpeakerDurations
from legato.text.english.frontend import english_g2p
from legato.text.english.track import EnglishTrack
from legato.text.segmenter import EMBEDDED_RULE, OFFICIAL_RULE, SegmentRule
from legato.text.tokenizer import BpeTokenizer, BpeTrack
from legato.types import TextToken, TextTrack
from legato.weights.loading import LoadedModel


class FrontEnd(Protocol):
    """Text front end of one kind of checkpoint."""

    @property
    def segments(self) -> SegmentRule:
        """Rule for cutting text into segments."""

    @property
    def ends_with_track(self) -> bool:
        """True if a sequence ends with its text track, not by an EOS code."""

    @property
    def changes_speed(self) -> bool:
        """True if `track` supports a `speed` other than 1."""

    def track(self, speaker: str, speed: float = 1.0) -> TextTrack:
        """A new track for one sequence. `speed` is 1 unless `changes_speed`."""

    def instruct(self, text: str) -> tuple[TextToken, ...]:
        """Tokens of an instruction block."""

    def reference(self, transcript: str) -> tuple[TextToken, ...]:
        """Tokens of the transcript of a reference recording."""


@dataclass(frozen=True, slots=True)
class BpeFrontEnd:
    """Front end of the official models: byte-level BPE."""

    tokenizer: BpeTokenizer
    segments: SegmentRule = OFFICIAL_RULE
    ends_with_track: bool = False
    changes_speed: bool = False

    def track(self, speaker: str, speed: float = 1.0) -> TextTrack:  # noqa: ARG002  the tokens depend on neither
        return BpeTrack(self.tokenizer)

    def instruct(self, text: str) -> tuple[TextToken, ...]:
        return self.tokenizer.encode_instruction(text)

    def reference(self, transcript: str) -> tuple[TextToken, ...]:
        return self.tokenizer.encode_transcript(transcript)


@dataclass(frozen=True, slots=True)
class PhoneFrontEnd:
    """Front end of the embedded voice: English phones with predicted durations, aligned to frames."""

    text: PhoneTextConfig
    durations: dict[str, SpeakerDurations]
    segments: SegmentRule = EMBEDDED_RULE
    ends_with_track: bool = True
    changes_speed: bool = True

    def track(self, speaker: str, speed: float = 1.0) -> TextTrack:
        return EnglishTrack(self.text, self.durations[speaker], speed=speed)

    def instruct(self, text: str) -> tuple[TextToken, ...]:  # noqa: ARG002
        raise UnsupportedError("the embedded voice does not support instruct; leave it empty", field="instruct")

    def reference(self, transcript: str) -> tuple[TextToken, ...]:  # noqa: ARG002
        raise UnsupportedError("the embedded voice cannot clone; load a Base checkpoint", field="clone")


def front_end_of(model: LoadedModel) -> FrontEnd:
    """Create the front end that the checkpoint's config selects."""
    text = model.config.talker.text
    if isinstance(text, BpeTextConfig):
        return BpeFrontEnd(BpeTokenizer.load(model.folder))
    if model.durations is None:
        raise StateError("a checkpoint with a phone track was loaded without its duration model")
    english_g2p()  # open the lexicon now, so that the first request does not wait for it
    speakers = enumerate(model.config.talker.speakers)
    return PhoneFrontEnd(text, {name: SpeakerDurations(model.durations, index) for index, name in speakers})
