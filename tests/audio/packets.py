"""Packets of known samples, for the tests of what takes packets."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from legato.flow import FinishReason, Packet, StreamId

RATE_HZ = 24_000
FRAME_SAMPLES = 1920


def speechlike(seconds: float, seed: int = 0) -> npt.NDArray[np.float32]:
    """A voiced buzz with moving formants and pauses, well inside full scale."""
    count = round(seconds * RATE_HZ)
    time_s = np.arange(count) / RATE_HZ
    noise = np.random.default_rng(seed).standard_normal(count)
    pitch = np.sin(2 * np.pi * (120 * time_s + 8 * np.sin(2 * np.pi * 0.9 * time_s)))
    envelope = 0.5 + 0.5 * np.sin(2 * np.pi * 1.7 * time_s + 1.0)
    wave = 0.35 * envelope * (pitch**3 + 0.2 * np.sin(2 * np.pi * 730 * time_s) + 0.02 * noise)
    return np.asarray(wave, dtype=np.float32)


def cut(samples: npt.NDArray[np.float32], sizes: Sequence[int] = (1920, 3840, 7680)) -> list[Packet]:
    """`samples` as the packets of one stream; the last size repeats."""
    packets, at, index = [], 0, 0
    while at < len(samples):
        size = sizes[min(index, len(sizes) - 1)]
        piece = samples[at : at + size]
        last = at + size >= len(samples)
        packets.append(
            Packet(
                stream=StreamId(1),
                first_sample=at,
                frames=-(-len(piece) // FRAME_SAMPLES),
                sample_rate_hz=RATE_HZ,
                float32_le=piece.astype("<f4").tobytes(),
                last=last,
                finish_reason=FinishReason.EOS if last else None,
            )
        )
        at, index = at + len(piece), index + 1
    return packets
