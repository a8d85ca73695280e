"""Test packets with known samples."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from legato.types import FinishReason, Packet, StreamId

RATE_HZ = 24_000
FRAME_SAMPLES = 1920


def speechlike(seconds: float, seed: int = 0) -> npt.NDArray[np.float32]:
    """A synthetic voiced signal with varying pitch and pauses, well below full scale."""
    count = round(seconds * RATE_HZ)
    time_s = np.arange(count) / RATE_HZ
    noise = np.random.default_rng(seed).standard_normal(count)
    pitch = np.sin(2 * np.pi * (120 * time_s + 8 * np.sin(2 * np.pi * 0.9 * time_s)))
    envelope = 0.5 + 0.5 * np.sin(2 * np.pi * 1.7 * time_s + 1.0)
    wave = 0.35 * envelope * (pitch**3 + 0.2 * np.sin(2 * np.pi * 730 * time_s) + 0.02 * noise)
    return np.asarray(wave, dtype=np.float32)


def split_packets(samples: npt.NDArray[np.float32], sizes: Sequence[int] = (1920, 3840, 7680)) -> list[Packet]:
    """Split `samples` into the packets of one stream; the last size repeats."""
    packets, start, index = [], 0, 0
    while start < len(samples):
        size = sizes[min(index, len(sizes) - 1)]
        part = samples[start : start + size]
        last = start + size >= len(samples)
        packets.append(
            Packet(
                stream=StreamId(1),
                first_sample=start,
                frames=-(-len(part) // FRAME_SAMPLES),
                sample_rate_hz=RATE_HZ,
                float32_le=part.astype("<f4").tobytes(),
                last=last,
                finish_reason=FinishReason.EOS if last else None,
            )
        )
        start, index = start + len(part), index + 1
    return packets
