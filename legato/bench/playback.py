"""Simulate playback of audio pieces from their arrival times: start, first audible sample, underruns.

Pure functions. Playback starts when `prebuffer_ms` of audio are buffered (0: with the first piece) and does not pause.
Underruns are computed by the engine's `StreamTiming`, with the client's times.
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
"""Silence thresholds of the engine's watchdog: below -54 dBFS, or 34 dB below the loudest window."""
SILENCE_WINDOW_MS = 10


@dataclass(frozen=True, slots=True)
class PlaybackResult:
    """`start_s`, `audible_s`: playback times of the first sample and the first audible one. `silence_s`: in between."""

    start_s: float
    audible_s: float
    silence_s: float
    underruns: int
    underrun_s: float


def simulate_playback(pieces: Sequence[AudioPiece], rate_hz: int, *, prebuffer_ms: float = 0.0) -> PlaybackResult:
    """Simulate playback of `pieces`, which hold at least one sample. Without an audible sample, all is silence."""
    start_s = _start_s(pieces, rate_hz, prebuffer_ms)
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


def _start_s(pieces: Sequence[AudioPiece], rate_hz: int, prebuffer_ms: float) -> float:
    """When `prebuffer_ms` of audio are buffered, at the latest when the last piece arrives."""
    buffered_samples = 0
    for arrived_s, samples in pieces:
        buffered_samples += len(samples)
        if buffered_samples and buffered_samples * 1000 >= prebuffer_ms * rate_hz:
            return arrived_s
    return pieces[-1][0]
