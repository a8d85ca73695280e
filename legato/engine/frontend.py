"""Which text front end a checkpoint has, and the wrapped texts that only its tokenizer can make.

Owns the tokenizer, or the port to the duration net, for the life of the engine; makes one track for each sequence.
Knows no slot and no stream.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from legato.config.model import BpeTextConfig, PhoneTextConfig
from legato.errors import StateError, UnsupportedError
from legato.flow import TextToken, TextTrack
from legato.models.durations import SpeakerDurations
from legato.models.load import LoadedModel
from legato.text.bpe import BpeTokenizer, BpeTrack
from legato.text.english import english_words
from legato.text.segment import EMBEDDED_RULE, OFFICIAL_RULE, SegmentRule
from legato.text.track_en import EnglishTrack


class FrontEnd(Protocol):
    """Text of one kind of checkpoint -> tracks and tokens."""

    @property
    def segments(self) -> SegmentRule:
        """How long one sequence's text gets."""

    @property
    def ends_with_track(self) -> bool:
        """True where a sequence ends when its track is spoken, not by a code."""

    @property
    def changes_speed(self) -> bool:
        """True where `track` can speak faster or slower."""

    def track(self, speaker: str, speed: float = 1.0) -> TextTrack:
        """A fresh track for one sequence. `speed` is 1 where it cannot be changed."""

    def instruct(self, text: str) -> tuple[TextToken, ...]:
        """The wrapped instruction block."""

    def reference(self, transcript: str) -> tuple[TextToken, ...]:
        """The tokens of a reference's transcript."""


@dataclass(frozen=True, slots=True)
class BpeFrontEnd:
    """The official models': byte-level BPE."""

    tokenizer: BpeTokenizer
    segments: SegmentRule = OFFICIAL_RULE
    ends_with_track: bool = False
    changes_speed: bool = False

    def track(self, speaker: str, speed: float = 1.0) -> TextTrack:  # noqa: ARG002  the tokens depend on neither
        return BpeTrack(self.tokenizer)

    def instruct(self, text: str) -> tuple[TextToken, ...]:
        return self.tokenizer.instruct(text)

    def reference(self, transcript: str) -> tuple[TextToken, ...]:
        return self.tokenizer.reference(transcript)


@dataclass(frozen=True, slots=True)
class PhoneFrontEnd:
    """The embedded voice's: English phones with their durations, aligned to frames."""

    text: PhoneTextConfig
    durations: dict[str, SpeakerDurations]
    segments: SegmentRule = EMBEDDED_RULE
    ends_with_track: bool = True
    changes_speed: bool = True

    def track(self, speaker: str, speed: float = 1.0) -> TextTrack:
        return EnglishTrack(self.text, self.durations[speaker], speed=speed)

    def instruct(self, text: str) -> tuple[TextToken, ...]:  # noqa: ARG002
        raise UnsupportedError("the embedded voice takes no instruction; leave instruct empty", field="instruct")

    def reference(self, transcript: str) -> tuple[TextToken, ...]:  # noqa: ARG002
        raise UnsupportedError("the embedded voice cannot clone; load a Base checkpoint", field="clone")


def front_end_of(model: LoadedModel) -> FrontEnd:
    """The front end that the checkpoint's config names."""
    text = model.config.talker.text
    if isinstance(text, BpeTextConfig):
        return BpeFrontEnd(BpeTokenizer.load(model.folder))
    if model.durations is None:
        raise StateError("a checkpoint with a phone track was loaded without its duration net")
    english_words()  # the lexicon is opened with the model, and not while the first text waits for it
    speakers = enumerate(model.config.talker.speakers)
    return PhoneFrontEnd(text, {name: SpeakerDurations(model.durations, index) for index, name in speakers})
