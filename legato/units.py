"""Exact conversions between hertz, seconds, milliseconds, samples and frames.

Owns the few constants that every layer shares. Knows no model: rates come from the checkpoint and are passed in.
A number is divided exactly or not at all: a frame rate is the fraction 24000/1920 = 25/2, never 12.
"""

from __future__ import annotations

from fractions import Fraction


def frame_rate_hz(sample_rate_hz: int, frame_samples: int) -> Fraction:
    """Frames a second as an exact fraction (12.5 Hz is 25/2)."""
    return Fraction(sample_rate_hz, frame_samples)


def frames_to_samples(frames: int, frame_samples: int) -> int:
    """Samples of a whole number of frames."""
    return frames * frame_samples


def samples_to_seconds(samples: int, sample_rate_hz: int) -> float:
    """Duration of `samples` in seconds."""
    return samples / sample_rate_hz


def seconds_to_frames_ceil(seconds: float, sample_rate_hz: int, frame_samples: int) -> int:
    """The smallest number of whole frames that lasts at least `seconds`."""
    exact = Fraction(seconds) * frame_rate_hz(sample_rate_hz, frame_samples)
    return -int(-exact // 1)


def samples_to_frames_exact(samples: int, frame_samples: int) -> int:
    """Frames in `samples`; a remainder is a `ValueError`, because it means that somebody lost count."""
    frames, rest = divmod(samples, frame_samples)
    if rest:
        raise ValueError(f"{samples} samples are not a whole number of frames of {frame_samples} samples")
    return frames
