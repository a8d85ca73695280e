"""What a listener hears of pieces of sound that arrive when they arrive: when it starts, when it is audible, when it
stops for want of more. Pure; the arrivals are arguments.

The listener plays from the first piece on, or once so many milliseconds are collected, and never pauses by choice. The
count of underruns is the engine's own (`StreamTiming`), fed with the client's times.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from legato.engine.stats import StreamTiming
from legato.text.budget import WatchdogRule

Piece = tuple[float, npt.NDArray[np.int16]]
"""Seconds of the client's clock, and the samples that arrived then."""

RULE = WatchdogRule()
"""What the engine's watchdog calls silent, here for stretches of 10 ms: below -54 dBFS, or 34 dB under the loudest."""
STRETCH_MS = 10


@dataclass(frozen=True, slots=True)
class Hearing:
    """`start_s`: the first sample plays; `audible_s`: the first audible one does, `silence_s` of sound later."""

    start_s: float
    audible_s: float
    silence_s: float
    underruns: int
    underrun_s: float


def hear(pieces: Sequence[Piece], rate_hz: int, *, start_ms: float = 0.0) -> Hearing:
    """Play `pieces`, at least one sample in all, and say how it went. Sound that is never audible is all silence."""
    start_s = _start_s(pieces, rate_hz, start_ms)
    timing = StreamTiming()
    silent = leading_silence(np.concatenate([samples for _, samples in pieces]), rate_hz)
    heard, audible_s = 0, 0.0
    for arrived_s, samples in pieces:
        now_s = max(arrived_s, start_s)
        begins_s = now_s + (max(0.0, timing.slack_s(now_s)) if timing.packet_s else 0.0)
        timing.packet(now_s, len(samples) / rate_hz)
        if heard <= silent:
            audible_s = begins_s + min(silent - heard, len(samples)) / rate_hz
        heard += len(samples)
    return Hearing(start_s, audible_s, silent / rate_hz, timing.underruns, timing.underrun_s)


def leading_silence(samples: npt.NDArray[np.int16], rate_hz: int) -> int:
    """Samples before the first stretch of 10 ms that is not silent by `RULE`; all of them if every one is."""
    stretch = rate_hz * STRETCH_MS // 1000
    scaled = np.pad(samples.astype(np.float64) / 32768, (0, -len(samples) % stretch))
    levels = np.sqrt(np.mean(np.square(scaled.reshape(-1, stretch)), axis=1))
    loud = np.flatnonzero(levels >= max(RULE.silence_floor, RULE.silence_ratio * levels.max()))
    return int(loud[0]) * stretch if loud.size else len(samples)


def _start_s(pieces: Sequence[Piece], rate_hz: int, start_ms: float) -> float:
    """When enough is collected; at the latest when the last piece is there."""
    collected = 0
    for arrived_s, samples in pieces:
        collected += len(samples)
        if collected and collected * 1000 >= start_ms * rate_hz:
            return arrived_s
    return pieces[-1][0]
