"""Simulate playback of audio pieces by their arrival times: start, first audible sample, underruns.

Pure functions. Playback starts with the first piece, or when `start_ms` of audio are buffered, and never pauses by
choice. Underruns are counted by the engine's own `StreamTiming`, with the client's times.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from legato.engine.stats import StreamTiming
from legato.text.budget import WatchdogRule

AudioPiece = tuple[float, npt.NDArray[np.int16]]
"""Arrival time on the client's clock in seconds, and the samples."""

RULE = WatchdogRule()
"""The silence thresholds of the engine's watchdog: below -54 dBFS, or 34 dB under the loudest window."""
SILENCE_WINDOW_MS = 10


@dataclass(frozen=True, slots=True)
class PlaybackResult:
    """`start_s`, `audible_s`: when the first and the first audible sample play; `silence_s`: audio between them."""

    start_s: float
    audible_s: float
    silence_s: float
    underruns: int
    underrun_s: float


def simulate_playback(pieces: Sequence[AudioPiece], rate_hz: int, *, start_ms: float = 0.0) -> PlaybackResult:
    """Play `pieces`, which hold at least one sample. Audio without an audible sample counts as silence to its end."""
    start_s = _start_s(pieces, rate_hz, start_ms)
    timing = StreamTiming()
    silent = leading_silence_samples(np.concatenate([samples for _, samples in pieces]), rate_hz)
    played, audible_s = 0, 0.0
    for arrived_s, samples in pieces:
        now_s = max(arrived_s, start_s)
        # A piece plays on arrival, or when the audio buffered before it has been played.
        piece_start_s = now_s + (max(0.0, timing.slack_s(now_s)) if timing.packet_s else 0.0)
        timing.packet(now_s, len(samples) / rate_hz)
        if played <= silent:
            audible_s = piece_start_s + min(silent - played, len(samples)) / rate_hz
        played += len(samples)
    return PlaybackResult(
        start_s=start_s,
        audible_s=audible_s,
        silence_s=silent / rate_hz,
        underruns=timing.underruns,
        underrun_s=timing.underrun_s,
    )


def leading_silence_samples(samples: npt.NDArray[np.int16], rate_hz: int) -> int:
    """Samples before the first 10 ms window that is not silent by `RULE`; all samples if every window is silent."""
    window = rate_hz * SILENCE_WINDOW_MS // 1000
    scaled = np.pad(samples.astype(np.float64) / 32768, (0, -len(samples) % window))
    levels = np.sqrt(np.mean(np.square(scaled.reshape(-1, window)), axis=1))
    loud = np.flatnonzero(levels >= max(RULE.silence_floor, RULE.silence_ratio * levels.max()))
    return int(loud[0]) * window if loud.size else len(samples)


def _start_s(pieces: Sequence[AudioPiece], rate_hz: int, start_ms: float) -> float:
    """When `start_ms` of audio are buffered, at the latest when the last piece arrives."""
    buffered_samples = 0
    for arrived_s, samples in pieces:
        buffered_samples += len(samples)
        if buffered_samples and buffered_samples * 1000 >= start_ms * rate_hz:
            return arrived_s
    return pieces[-1][0]
