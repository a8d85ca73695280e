"""Speech metrics: word error rate (whisper tiny.en through faster-whisper, MIT) and DNSMOS (speechmos, MIT).

Never used for training. The models are loaded once per process.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING

import jiwer
import librosa
import numpy as np
import paths
from numpy.typing import NDArray

if TYPE_CHECKING:
    from faster_whisper import WhisperModel

JUDGE_RATE_HZ = 16_000
MOS_KEYS = ("ovrl_mos", "sig_mos", "bak_mos", "p808_mos")


@cache
def _recogniser(threads: int) -> WhisperModel:
    from faster_whisper import WhisperModel

    return WhisperModel(str(paths.WHISPER), device="cpu", compute_type="int8", cpu_threads=threads)


def transcribe(samples: NDArray[np.float32], rate_hz: int, threads: int = 1) -> str:
    """Transcribe mono samples."""
    heard = librosa.resample(samples, orig_sr=rate_hz, target_sr=JUDGE_RATE_HZ)
    segments, _ = _recogniser(threads).transcribe(
        heard, beam_size=5, language="en", without_timestamps=True, condition_on_previous_text=False
    )
    return " ".join(segment.text.strip() for segment in segments)


def plain_words(text: str) -> str:
    """Lower-case words of letters, digits and apostrophes."""
    return " ".join(re.sub(r"[^a-z0-9' ]", " ", text.lower()).split())


def word_error_rate(references: Sequence[str], heard: Sequence[str]) -> float:
    """Word error rate over all sentences together."""
    return float(jiwer.wer([plain_words(text) for text in references], [plain_words(text) for text in heard]))


def mos(waves: Sequence[NDArray[np.float32]], rate_hz: int) -> dict[str, float]:
    """Mean DNSMOS scores of the waves, each normalized to a peak of 0.9."""
    from speechmos import dnsmos

    results = []
    for samples in waves:
        heard = librosa.resample(samples, orig_sr=rate_hz, target_sr=JUDGE_RATE_HZ)
        results.append(dnsmos.run(heard * (0.9 / max(1e-3, float(np.abs(heard).max()))), JUDGE_RATE_HZ))
    return {key: round(float(np.mean([result[key] for result in results])), 3) for key in MOS_KEYS}
