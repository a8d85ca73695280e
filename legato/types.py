"""Immutable value types shared by several layers, in the order of the data flow. No tensors.

`text -> text tokens -> prompt -> (talker, code predictor) -> frames -> (codec) -> packets`
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from enum import Enum
from numbers import Integral, Real
from typing import TYPE_CHECKING, NewType, Protocol, TypedDict

from legato.errors import SamplingError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

# --- ids -------------------------------------------------------------------------------------------------------------

StreamId = NewType("StreamId", int)
"""One continuous waveform."""
SequenceId = NewType("SequenceId", int)
"""One run of the talker over one prompt. A stream has one or several, in order."""

# --- text ------------------------------------------------------------------------------------------------------------

TextToken = tuple[int, ...]
"""Text input of the talker at one position: one BPE id, or one phone id for each phone table."""

Frame = tuple[int, ...]
"""The codes of one codec step, codebook 0 first."""


@dataclass(frozen=True, slots=True)
class WordSpan:
    """Range of a word in the client's text (characters) and in its sequence (frames), ends exclusive."""

    text_start: int
    text_end: int
    start_frame: float
    end_frame: float


@dataclass(frozen=True, slots=True)
class SpokenWord:
    """Range of a word in a stream: in the client's text (characters) and in its audio (samples), ends exclusive.

    The times come from the alignment of phones and frames that the talker receives; they are not measured in the audio.
    """

    text_start: int
    text_end: int
    first_sample: int
    end_sample: int


class IncrementalTokenizer(Protocol):
    """Tokenizer of one sequence that accepts text in pieces.

    A token is committed after a fixed look-ahead and never changes, so the tokens do not depend on how the text is cut
    into pieces. `append` and `end` raise `InputError` for text that cannot be spoken.
    """

    def append(self, text: str) -> None:
        """Append text of any length, cut at any character."""

    def end(self) -> None:
        """Mark the end of the text and commit the remaining tokens. May be called once."""

    @property
    def tokens(self) -> Sequence[TextToken]:
        """All tokens committed so far."""

    @property
    def ended(self) -> bool:
        """True after `end`: `tokens` is then complete."""

    @property
    def words(self) -> Sequence[WordSpan]:
        """Words with known times; empty if the front end has no word times."""


class TextLayout(Enum):
    """Position of the text relative to the frames. The official models are trained with both layouts."""

    WHOLE = "whole"
    """All text before the first frame (`non_streaming_mode=True` in the official package)."""
    STREAMING = "streaming"
    """One text token per frame; audio starts after the first token."""


# --- prompt ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PromptRow:
    """One position of the prompt. Its input embedding is the sum of the parts that are set.

    `text`: text token (text embedding). `code`: row of the talker's codec embedding. `speaker_vector`: the speaker
    vector of the cloned voice. `reference_frame`: index of a frame of the reference codes of the cloned voice.
    """

    text: TextToken | None = None
    code: int | None = None
    speaker_vector: bool = False
    reference_frame: int | None = None


@dataclass(frozen=True, slots=True)
class PromptPlan:
    """The prompt, and the text tokens that are added to the inputs after it.

    The input after frame n includes token n of this sequence: `leading_tokens`, the tokens of the text from index
    `next_text_index`, `trailing_tokens`, and then `pad_token` repeated. The first `fixed_prefix_len` rows do not depend
    on the text.
    """

    rows: tuple[PromptRow, ...]
    fixed_prefix_len: int
    next_text_index: int
    leading_tokens: tuple[TextToken, ...]
    trailing_tokens: tuple[TextToken, ...]
    pad_token: TextToken


@dataclass(frozen=True, slots=True)
class NeedsText:
    """The prompt cannot be built until the tokenizer has `tokens` tokens or has ended."""

    tokens: int


# --- request ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How codes are sampled. Temperature 0 is greedy; `top_k` 0 and `top_p` 1 disable their filter.

    `repetition_penalty` applies to codebook 0 only, over all codes of the sequence. The `predictor_` values apply to
    the residual codebooks. The command line, HTTP and checkpoints use the same field names. There are no defaults here,
    because each checkpoint has its own (`Legato.default_sampling`).
    """

    temperature: float
    top_k: int
    top_p: float
    repetition_penalty: float
    predictor_temperature: float
    predictor_top_k: int
    predictor_top_p: float

    def __post_init__(self) -> None:
        for each in fields(self):
            value, whole = getattr(self, each.name), each.name.endswith("top_k")
            # Wrong types would pass the comparisons below or raise later, in a batch that others share.
            if isinstance(value, bool) or not isinstance(value, Integral if whole else Real):
                kind = "a whole number" if whole else "a number"
                raise SamplingError(f"{each.name} must be {kind}, not {value!r}"[:200], field=each.name)
        for name in ("temperature", "predictor_temperature"):
            value = getattr(self, name)
            if not 0.0 <= value <= 10.0:
                raise SamplingError(f"{name} must be between 0 (greedy) and 10, not {value}", field=name)
        for name in ("top_k", "predictor_top_k"):
            value = getattr(self, name)
            if not 0 <= value < 2**31:
                raise SamplingError(f"{name} must be 0 (off) to {2**31 - 1}, not {str(value)[:40]}", field=name)
        for name in ("top_p", "predictor_top_p"):
            value = getattr(self, name)
            if not 0.0 < value <= 1.0:
                raise SamplingError(f"{name} must be above 0 and at most 1 (off), not {value}", field=name)
        if not 0.1 <= self.repetition_penalty <= 10.0:
            raise SamplingError(
                f"repetition_penalty must be between 0.1 and 10 (1 is off), not {self.repetition_penalty}",
                field="repetition_penalty",
            )


SAMPLING_FIELDS = tuple(each.name for each in fields(SamplingParams))


class SamplingOptions(TypedDict, total=False):
    """The fields of `SamplingParams` as optional keyword arguments, for type checkers."""

    temperature: float
    top_k: int
    top_p: float
    repetition_penalty: float
    predictor_temperature: float
    predictor_top_k: int
    predictor_top_p: float


DEFAULT_PACKET_FRAMES = (1, 2, 4)
"""Frames of the first, second and all later packets: a short first packet for latency, longer ones for throughput."""


@dataclass(frozen=True, slots=True)
class PromptSpec:
    """Inputs of the prompt except the text, as token ids.

    `speaker`: "" for voice design and clones. `instruct`: the complete instruction block. A clone sets
    `speaker_vector`, and with a transcript also `reference_text` and the number of `reference_frames`.
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
    """Why a stream ended."""

    EOS = "eos"
    """The talker sampled the end-of-speech code."""
    TRACK_END = "track_end"
    """The whole text was spoken (models whose text tokens are aligned to frames)."""
    MAX_FRAMES = "max_frames"
    """The caller's frame limit was reached."""
    BUDGET = "budget"
    """The default limit, which scales with the text, was reached because the model did not stop by itself."""
    SILENCE = "silence"
    """The watchdog stopped the stream because the audio was silent for too long."""
    REPEAT = "repeat"
    """The watchdog stopped the stream because frames were repeated."""
    CANCELLED = "cancelled"
    FAILED = "failed"


REGULAR_ENDS = (FinishReason.EOS, FinishReason.TRACK_END)
"""Reasons after which the whole text was spoken. With every other reason the speech may be incomplete."""


@dataclass(frozen=True, slots=True)
class Packet:
    """Consecutive samples of one stream: little-endian float32, mono, in [-1, 1], all finite.

    `last` marks the last packet of a stream, which may be empty; only this packet has a `finish_reason`.
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
        """The samples as int16: scaled by 32768, rounded, clipped (never wrapped)."""
        import numpy as np

        scaled = np.rint(self.float32() * np.float32(32768.0))
        clipped: npt.NDArray[np.int16] = np.clip(scaled, -32768, 32767).astype("<i2")
        return clipped
