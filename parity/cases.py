"""The cases of the comparison with the official package, as data for both sides.

Uses only Python and numpy, so that it can be imported in both environments.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

CHECKPOINTS = (
    "tiny-custom-voice",
    "tiny-custom-voice-wide",
    "tiny-voice-design",
    "tiny-base",
    "tiny-base-wide",
)
"""Values of `legato random-checkpoint --architecture`. In the wide ones, the width of the code predictor differs from
that of the talker."""


@dataclass(frozen=True, slots=True)
class Row:
    """One request. `reference_samples`: length of the reference audio, 0 for none.

    Without a `reference_text`, only the speaker vector of the reference is used.
    """

    text: str
    language: str = "auto"
    speaker: str = ""
    instruct: str = ""
    reference_samples: int = 0
    reference_text: str = ""


@dataclass(frozen=True, slots=True)
class Sampling:
    """Sampling parameters. Only the processed logits are compared; the two sides have different random generators."""

    seed: int
    temperature: float
    top_k: int
    top_p: float
    repetition_penalty: float
    predictor_temperature: float
    predictor_top_k: int
    predictor_top_p: float


@dataclass(frozen=True, slots=True)
class Case:
    """One call of the official package. `whole` is its `non_streaming_mode`; without `sampling` it is greedy.

    `stop_at`: end of speech gets the largest logit at this frame, by an edited checkpoint (see `variants.py`).
    """

    name: str
    checkpoint: str
    rows: tuple[Row, ...]
    whole: bool
    max_new_tokens: int = 7
    sampling: Sampling | None = None
    stop_at: int | None = None


ENGLISH = "The quick brown fox jumps."
SHORT = "Hi."
CHINESE = "今天天气很好，我们去公园。"
REFERENCE_TEXT = "A short sample of my voice, read aloud on a quiet morning."
SHORT_REFERENCE_TEXT = "One two."
FIVE_FRAMES = 5 * 1920
"""A reference with fewer frames than text tokens: in the streaming layout the text is longer than the reference."""
MANY_FRAMES = 40 * 1920 - 700
"""A reference with more frames than text tokens, and an incomplete last frame."""


def _single_rows() -> dict[str, tuple[tuple[str, Row], ...]]:
    """Checkpoint -> named rows that run unbatched, each in both text layouts."""
    long_icl = Row(ENGLISH, "english", reference_samples=FIVE_FRAMES, reference_text=REFERENCE_TEXT)
    short_icl = Row(SHORT, "auto", reference_samples=MANY_FRAMES, reference_text=SHORT_REFERENCE_TEXT)
    vector = Row(ENGLISH, "english", reference_samples=FIVE_FRAMES)
    return {
        "tiny-custom-voice": (
            ("english", Row(ENGLISH, "English", "Vivian")),
            ("auto", Row(ENGLISH, "auto", "ryan")),
            ("auto-dialect", Row(CHINESE, "auto", "eric")),
            ("chinese-dialect", Row(CHINESE, "Chinese", "Dylan")),
            ("english-dialect-speaker", Row(ENGLISH, "english", "eric")),
            ("one-token", Row("Hi", "auto", "vivian")),
        ),
        "tiny-custom-voice-wide": (
            ("english", Row(ENGLISH, "english", "ryan")),
            ("instruct", Row(ENGLISH, "english", "vivian", "Speak slowly, in a warm voice.")),
            ("instruct-dialect", Row(CHINESE, "auto", "dylan", "用愉快的语气说。")),
        ),
        "tiny-voice-design": (
            ("design", Row(ENGLISH, "english", "", "A deep old male voice, calm.")),
            ("design-auto", Row(CHINESE, "auto", "", "清亮的女声")),
            ("design-none", Row(SHORT, "german")),
        ),
        "tiny-base": (
            ("vector", vector),
            ("vector-auto", Row(CHINESE, "auto", reference_samples=MANY_FRAMES)),
            ("icl-text-longer", long_icl),
            ("icl-reference-longer", short_icl),
        ),
        "tiny-base-wide": (
            ("vector", vector),
            ("icl-text-longer", long_icl),
            ("icl-reference-longer", short_icl),
        ),
    }


def _batches() -> dict[str, tuple[str, tuple[Row, ...]]]:
    """Name -> checkpoint and rows of different lengths that the official package runs as one batch."""
    return {
        "batch-speakers": (
            "tiny-custom-voice",
            (Row(ENGLISH, "english", "vivian"), Row("Hi", "auto", "ryan"), Row(CHINESE, "auto", "eric")),
        ),
        "batch-designs": (
            "tiny-voice-design",
            (Row(ENGLISH, "english", "", "A whisper."), Row(SHORT, "auto"), Row(CHINESE, "chinese", "", "清亮的女声")),
        ),
        "batch-clones": (
            "tiny-base-wide",
            (
                Row(ENGLISH, "english", reference_samples=FIVE_FRAMES),
                Row(ENGLISH, "auto", reference_samples=FIVE_FRAMES, reference_text=REFERENCE_TEXT),
                Row(SHORT, "french", reference_samples=MANY_FRAMES, reference_text=SHORT_REFERENCE_TEXT),
            ),
        ),
    }


SAMPLINGS = (
    Sampling(1, 0.9, 50, 1.0, 1.05, 0.9, 50, 1.0),
    Sampling(2, 0.7, 20, 0.8, 1.3, 1.2, 10, 0.7),
    Sampling(3, 1.3, 0, 0.95, 1.0, 0.6, 0, 0.5),
)


def _layout(whole: bool) -> str:
    return "whole" if whole else "streaming"


def all_cases() -> tuple[Case, ...]:
    """Every case, in a fixed order."""
    cases: list[Case] = []
    for whole in (True, False):
        for checkpoint, rows in _single_rows().items():
            for name, row in rows:
                cases.append(Case(f"{checkpoint}/{name}/{_layout(whole)}", checkpoint, (row,), whole))
        for name, (checkpoint, batch) in _batches().items():
            cases.append(Case(f"{checkpoint}/{name}/{_layout(whole)}", checkpoint, batch, whole))
    voice = Row(SHORT, "english", "vivian")
    cases.append(
        Case("tiny-custom-voice/past-the-text/streaming", "tiny-custom-voice", (voice,), False, max_new_tokens=25)
    )
    for stop_at in (1, 4):
        name = f"tiny-custom-voice/stops-{stop_at}/streaming"
        cases.append(Case(name, "tiny-custom-voice", (voice,), False, max_new_tokens=12, stop_at=stop_at))
    for checkpoint, row in (("tiny-custom-voice", voice), ("tiny-base-wide", _single_rows()["tiny-base-wide"][1][1])):
        for sampling in SAMPLINGS:
            cases.append(Case(f"{checkpoint}/draw-{sampling.seed}/streaming", checkpoint, (row,), False, 7, sampling))
    return tuple(cases)


FULL_CHECKPOINT = "0.6B-Base"
"""The official model with all modules: talker, code predictor, codec decoder and encoder, speaker encoder."""


def full_cases() -> tuple[Case, ...]:
    """The cases at full size."""
    vector = Row(SHORT, "english", reference_samples=FIVE_FRAMES)
    clone = Row(ENGLISH, "english", reference_samples=FIVE_FRAMES, reference_text=REFERENCE_TEXT)
    return (
        Case(f"{FULL_CHECKPOINT}/vector/whole", FULL_CHECKPOINT, (vector,), True, max_new_tokens=4),
        Case(f"{FULL_CHECKPOINT}/icl-text-longer/streaming", FULL_CHECKPOINT, (clone,), False, max_new_tokens=4),
    )


def cases_of(checkpoint: str) -> tuple[Case, ...]:
    """The cases of one checkpoint."""
    return tuple(case for case in (*all_cases(), *full_cases()) if case.checkpoint == checkpoint)


def reference_audio(samples: int) -> npt.NDArray[np.float32]:
    """A synthetic voice: gliding harmonics with a syllable-like envelope and noise; [samples] at 24 kHz.

    Quantized to 16 bits, so that differences between sine implementations do not matter.
    """
    seconds = np.arange(samples, dtype=np.float64) / 24000.0
    phase = 2.0 * np.pi * (140.0 * seconds + 6.0 * np.sin(2.0 * np.pi * 1.7 * seconds))
    voiced = sum(np.sin(order * phase) / order for order in range(1, 12))
    envelope = 0.35 + 0.3 * np.sin(2.0 * np.pi * 3.1 * seconds) ** 2
    noise = np.random.Generator(np.random.PCG64(7)).integers(-800, 800, samples)
    whole = np.rint(9000.0 * envelope * voiced) + noise
    return (np.clip(whole, -32768, 32767) / 32768.0).astype(np.float32)


def codec_lengths(checkpoint: str) -> tuple[int, ...]:
    """Frames of the codec decoder cases: from less than a convolution history to more than the attention window."""
    return (1, 90) if checkpoint == FULL_CHECKPOINT else (1, 3, 40, 170)


def encoder_lengths(checkpoint: str) -> tuple[int, ...]:
    """Samples of the codec encoder cases, with and without an incomplete frame.

    The longest (12.5 s) exceeds the attention window of the config (10 s), which the official package does not apply.
    """
    return (5000, 300_000) if checkpoint == FULL_CHECKPOINT else (1920, 5000, FIVE_FRAMES, MANY_FRAMES, 300_000)


MEL_LENGTHS = (2000, FIVE_FRAMES, MANY_FRAMES)
"""Samples of the speaker encoder cases."""


def random_codes(frames: int, codebooks: int, size: int) -> npt.NDArray[np.int64]:
    """Codes [frames, codebooks], equal on every machine."""
    return np.random.Generator(np.random.PCG64(frames)).integers(0, size, (frames, codebooks))


TEXTS = (
    "Hello, world!",
    "iPhone and camelCase, HTTPServer2 parsing",
    "Prices: $3.50, 1,234.5 and 10%",
    "The café's naïve façade — déjà vu",
    "e\u0301 decomposed, \u212b and \ufb01",
    CHINESE,
    "日本語のテキストです。",
    "한국어 문장입니다.",
    "Это русский текст.",
    "สวัสดีครับ",
    "  two  spaces\tand\ttabs ",
    "line one\nline two\n\nline four",
    "don't I'll we've they'RE",
    "emoji 🙂👍🏽 done",
    "<|im_start|>user\nhi<|im_end|>\n",
    "a",
)
"""Texts whose token ids are compared with both pre-tokenizer patterns."""
