"""Packet sizes with which a listener who starts at the first packet hears no gap. Pure arithmetic on measured times.

A first packet of one frame arrives soonest, but plays for 80 ms only: if the next packet needs longer, the sound stops.
So the first packet is held back until the audio in it covers the time to the next one, and so on to the end. The
samples do not depend on packet sizes. `StepTimes` are measured by a `StepTimer`, which belongs to one engine.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass
from statistics import median

from legato.types import DEFAULT_PACKET_FRAMES

MARGIN_S = 0.015
"""Reserve for jitter: between the engine and the client, and of the measured times."""
MAX_FIRST_FRAMES = 12
"""Longest first packet. A slower model cannot play without a gap, or only after a long wait."""
MAX_WINDOW_FRAMES = 4
_HORIZON_FRAMES = 50
"""Frames for which the simulation runs. What plays for this long without losing buffered audio plays on."""
_SLOWER = 1.08
"""The first packet is chosen for steps that take this much longer than measured."""
_QUANTILE = 0.8
_LATEST = 15
"""Measurements that count."""


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Measured times of an engine, at the current number of streams.

    `step_s`: one step of talker and code predictor, which adds a frame to each stream. `call_s` and `frame_s`: fixed
    time of a codec call, and time for each frame in it.
    """

    step_s: float
    call_s: float
    frame_s: float

    def window_s(self, frames: int, streams: int = 1) -> float:
        """Time to decode `frames` frames of each of `streams` streams."""
        return self.call_s + self.frame_s * frames * streams

    def packet_s(self, frames: int, streams: int = 1) -> float:
        """Time to generate and decode the next packet of `frames` frames, while other streams do the same."""
        return frames * self.step_s + self.window_s(frames, streams)

    def real_time_factor(self, streams: int = 1, frame_audio_s: float = 0.08) -> float:
        """Time per second of audio, with windows of `MAX_WINDOW_FRAMES`."""
        return self.packet_s(MAX_WINDOW_FRAMES, streams) / (MAX_WINDOW_FRAMES * frame_audio_s)


def first_packet_frames(
    times: StepTimes,
    *,
    streams: int = 1,
    frame_audio_s: float = 0.08,
    lead_s: float = 0.0,
    sizes: tuple[int, ...] = DEFAULT_PACKET_FRAMES,
) -> int | None:
    """Frames of the smallest first packet after which playback has no gap; None if `MAX_FIRST_FRAMES` do not suffice.

    `lead_s`: audio that the listener buffers before playback, in addition to the first packet. `sizes`: of the later
    packets, as in `PacketPolicy`.
    """
    slower = StepTimes(times.step_s * _SLOWER, times.call_s * _SLOWER, times.frame_s * _SLOWER)
    for frames in range(1, MAX_FIRST_FRAMES + 1):
        if _plays_on(slower, frames * frame_audio_s + lead_s, streams, frame_audio_s, sizes):
            return frames
    return None


def _plays_on(times: StepTimes, slack_s: float, streams: int, frame_audio_s: float, sizes: tuple[int, ...]) -> bool:
    """Whether a listener with `slack_s` of audio hears no gap for a while, if the engine sends as `must_send` says."""
    start_s, available, packets = slack_s, 0, 1
    for _ in range(_HORIZON_FRAMES):
        slack_s -= times.step_s
        available += 1
        full = available >= sizes[min(packets, len(sizes) - 1)]
        if full or must_send(times, available=available, slack_s=slack_s, streams=streams):
            slack_s -= times.window_s(available, streams)
            if slack_s < MARGIN_S:
                return False
            slack_s += available * frame_audio_s
            available, packets = 0, packets + 1
    pending_s = available * frame_audio_s - times.window_s(available, streams) if available else 0.0
    return slack_s + pending_s >= start_s  # otherwise the audio runs out later


def must_send(times: StepTimes, *, available: int, slack_s: float, streams: int = 1) -> bool:
    """Whether to send the `available` frames now, because the listener's audio would run out with one frame more."""
    return available > 0 and times.step_s + times.window_s(available + 1, streams) + MARGIN_S > slack_s


def start_delay_s(times: StepTimes, *, frames: int, streams: int = 1, frame_audio_s: float = 0.08) -> float:
    """How long a listener has to wait before playback of `frames` frames without a gap; 0 if RTF is below 1."""
    return max(0.0, frames * frame_audio_s * (times.real_time_factor(streams, frame_audio_s) - 1.0))


class StepTimer:
    """Measures the times of one engine: an upper quantile of the latest steps, and a line through its codec calls.

    The quantile covers steps that vary on a busy machine. It ignores the few that take many times as long, because
    another program needed the core.
    """

    def __init__(self) -> None:
        self._steps: deque[float] = deque(maxlen=_LATEST)
        self._windows: deque[tuple[int, float]] = deque(maxlen=_LATEST)
        self._times: StepTimes | None = None

    def add_step(self, seconds: float) -> None:
        """A step of talker and code predictor."""
        self._steps.append(seconds)
        self._times = None

    def add_window(self, frames: int, seconds: float) -> None:
        """A codec call with `frames` frames, over all streams."""
        self._windows.append((frames, seconds))
        self._times = None

    def times(self) -> StepTimes | None:
        """The current times; None before the first step and the first codec call."""
        if self._times is None and self._steps and self._windows:
            call_s, frame_s = _line(self._windows)
            steps = sorted(self._steps)
            self._times = StepTimes(steps[int(_QUANTILE * (len(steps) - 1))], call_s, frame_s)
        return self._times


def _line(points: Collection[tuple[int, float]]) -> tuple[float, float]:
    """Fixed time and time per frame (Theil-Sen estimator: the median of the slopes of all pairs of points).

    Without different sizes all time counts as time per frame, which overestimates long windows and is safe.
    """
    slopes = [(t2 - t1) / (n2 - n1) for (n1, t1), (n2, t2) in itertools.combinations(points, 2) if n1 != n2]
    per_frame = median(seconds / frames for frames, seconds in points)
    frame_s = median(slopes) if slopes else per_frame
    if not 0.0 < frame_s <= per_frame:
        frame_s = per_frame
    return max(0.0, median(seconds - frame_s * frames for frames, seconds in points)), frame_s
