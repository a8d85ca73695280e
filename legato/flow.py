"""Every host value that crosses a layer, in the order in which it flows; the ids; the ports. No tensors.

`text -> track tokens -> prompt plan -> (talker, code predictor) -> frames -> (codec) -> packets`

Values are frozen. A value is never `None` for "nothing yet": absence of the value is absence from its container.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, NewType, Protocol

from legato.errors import SamplingError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

# --- ids -------------------------------------------------------------------------------------------------------------

StreamId = NewType("StreamId", int)
"""One unbroken waveform."""
SequenceId = NewType("SequenceId", int)
"""One run of the talker over one prompt; a stream has one or several, in order."""
SessionId = NewType("SessionId", int)
"""One connected client."""

# --- text ------------------------------------------------------------------------------------------------------------

TextToken = tuple[int, ...]
"""What the talker hears of the text at one position: one BPE id, or one phone id for each phone table."""

Frame = tuple[int, ...]
"""The codes of one codec step, codebook 0 first."""


@dataclass(frozen=True, slots=True)
class WordSpan:
    """Where a word stands in the client's text (characters) and in its sequence (frames, start inclusive)."""

    text_start: int
    text_end: int
    start_frame: float
    end_frame: float


@dataclass(frozen=True, slots=True)
class SpokenWord:
    """Where a word stands in a stream: in the client's text (characters) and in its sound (samples).

    The times are those that the front end has laid down for the talker to follow, not measured in the sound.
    """

    text_start: int
    text_end: int
    first_sample: int
    end_sample: int


class TextTrack(Protocol):
    """A front end: pieces of text in, committed text tokens out.

    Tokens are committed by a rule with a stated look-ahead that is the same for text given whole and in pieces; a
    committed token never changes. Errors of the text are raised by `append` or `end`.
    """

    def append(self, text: str) -> None:
        """Take the next piece of text, of any length, cut anywhere."""

    def end(self) -> None:
        """No more text will come; commits what is left. May be called once."""

    @property
    def tokens(self) -> Sequence[TextToken]:
        """All tokens committed so far."""

    @property
    def ended(self) -> bool:
        """True once `end` was called: `tokens` is then complete."""

    @property
    def words(self) -> Sequence[WordSpan]:
        """Words whose times are known; empty where the front end knows none."""


class TextLayout(Enum):
    """How the target text is laid along the talker's positions (the official models were given both)."""

    WHOLE = "whole"
    """All text before the first frame (`non_streaming_mode=True` in the official package)."""
    STREAMING = "streaming"
    """One text token a frame; speech starts after the first."""


# --- prompt ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PromptRow:
    """One input position before the first frame: the sum of the parts that are set.

    `text`: text token (through the text embedding). `code`: row of the talker's codec embedding.
    `speaker_vector`: the voice's speaker vector. `reference_frame`: index of a frame of the voice's reference codes.
    """

    text: TextToken | None = None
    code: int | None = None
    speaker_vector: bool = False
    reference_frame: int | None = None


@dataclass(frozen=True, slots=True)
class PromptPlan:
    """The prompt as data, and what is fed with the frames that follow.

    The input after frame n adds item n of: `feed_before`, then the track's tokens from index `consumed` on, then
    `feed_after`, then `pad` for ever. The first `settled` rows are the same for every text that is spoken with the same
    voice and settings.
    """

    rows: tuple[PromptRow, ...]
    settled: int
    consumed: int
    feed_before: tuple[TextToken, ...]
    feed_after: tuple[TextToken, ...]
    pad: TextToken


@dataclass(frozen=True, slots=True)
class NeedsText:
    """The prompt cannot be built until the track has `tokens` tokens or has ended."""

    tokens: int


# --- request ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Sampling:
    """How codes are drawn. Temperature 0 is greedy; `top_k` 0 and `top_p` 1 switch their filter off.

    `repetition_penalty` acts on codebook 0 alone, over all codes of the sequence. The `predictor_` values serve the
    residual codebooks.
    """

    temperature: float
    top_k: int
    top_p: float
    repetition_penalty: float
    predictor_temperature: float
    predictor_top_k: int
    predictor_top_p: float

    def __post_init__(self) -> None:
        for name in ("temperature", "predictor_temperature"):
            value = getattr(self, name)
            if not 0.0 <= value <= 10.0:
                raise SamplingError(f"{name} must be between 0 (greedy) and 10, not {value}", field=name)
        for name in ("top_k", "predictor_top_k"):
            value = getattr(self, name)
            if value < 0:
                raise SamplingError(f"{name} must be 0 (off) or more, not {value}", field=name)
        for name in ("top_p", "predictor_top_p"):
            value = getattr(self, name)
            if not 0.0 < value <= 1.0:
                raise SamplingError(f"{name} must be above 0 and at most 1 (off), not {value}", field=name)
        if not 0.1 <= self.repetition_penalty <= 10.0:
            raise SamplingError(
                f"repetition_penalty must be between 0.1 and 10 (1 is off), not {self.repetition_penalty}",
                field="repetition_penalty",
            )


@dataclass(frozen=True, slots=True)
class PromptSpec:
    """What the prompt is built from, besides the track. Texts are already token ids of the checkpoint's tokenizer.

    `speaker` "" means none (voice design, clones). `instruct` is the whole wrapped block. A clone has
    `speaker_vector` True; with a transcript also `reference_text` and the number of its `reference_frames`.
    """

    language: str
    speaker: str
    layout: TextLayout
    instruct: tuple[TextToken, ...] = ()
    speaker_vector: bool = False
    reference_text: tuple[TextToken, ...] = ()
    reference_frames: int = 0


# --- results ---------------------------------------------------------------------------------------------------------


class FinishReason(Enum):
    """Why a stream ended. Always reported."""

    EOS = "eos"
    """The talker said that it was done."""
    TRACK_END = "track_end"
    """The aligned text track was spoken to its end."""
    MAX_FRAMES = "max_frames"
    """The caller's limit."""
    BUDGET = "budget"
    """The text-scaled default limit: the model did not stop by itself."""
    SILENCE = "silence"
    """The watchdog: nothing but silence for too long."""
    REPEAT = "repeat"
    """The watchdog: the same frames over and over."""
    CANCELLED = "cancelled"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Packet:
    """The host bytes of a stretch of one stream: little-endian float32 mono samples in [-1, 1], all finite.

    `last` is part of the last packet; `finish_reason` is meaningful there alone.
    """

    stream: StreamId
    first_sample: int
    frames: int
    sample_rate_hz: int
    float32_le: bytes = field(repr=False)
    last: bool = False
    finish_reason: FinishReason | None = None

    @property
    def sample_count(self) -> int:
        return len(self.float32_le) // 4

    def float32(self) -> npt.NDArray[np.float32]:
        """A read-only float32 view of the samples."""
        import numpy as np

        return np.frombuffer(self.float32_le, dtype="<f4")

    def int16(self) -> npt.NDArray[np.int16]:
        """The samples as int16: scaled by 32768, rounded, clipped at both rails (never wrapped)."""
        import numpy as np

        scaled = np.rint(self.float32() * np.float32(32768.0))
        clipped: npt.NDArray[np.int16] = np.clip(scaled, -32768, 32767).astype("<i2")
        return clipped
