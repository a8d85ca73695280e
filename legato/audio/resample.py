"""Streaming sample rate conversion with soxr.

A `Resampler` holds the filter state of one stream. Only the packet marked `last` flushes the filter, so pauses between
packets lose nothing. The output equals resampling the whole signal at once, for any split into packets, and has
round(n * to / from) samples.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import soxr

from legato.errors import StateError
from legato.types import Packet


class Resampler:
    """Resamples the packets of one stream from `from_hz` to `to_hz`. Equal rates return packets unchanged."""

    def __init__(self, from_hz: int, to_hz: int) -> None:
        self._from_hz = from_hz
        self._to_hz = to_hz
        self._input_samples = 0
        self._output_samples = 0
        self._stream = soxr.ResampleStream(from_hz, to_hz, 1, dtype="float32", quality="HQ")

    def resample(self, packet: Packet) -> Packet:
        """Resample the next packet. The filter delays some samples to the next call; the last packet flushes them."""
        if packet.sample_rate_hz != self._from_hz:
            raise StateError(
                f"the resampler expects packets at {self._from_hz} Hz, but received {packet.sample_rate_hz} Hz"
            )
        if packet.first_sample != self._input_samples:
            raise StateError(
                f"the resampler expects a packet that starts at sample {self._input_samples}, "
                f"but received one that starts at {packet.first_sample}"
            )
        self._input_samples += packet.sample_count
        if self._from_hz == self._to_hz:
            return packet
        samples = self._stream.resample_chunk(packet.float32(), last=packet.last)
        if packet.last:
            samples = self._exact_length(samples)
        first = self._output_samples
        self._output_samples += len(samples)
        data = np.ascontiguousarray(samples, dtype="<f4").tobytes()
        return replace(packet, first_sample=first, sample_rate_hz=self._to_hz, float32_le=data)

    def _exact_length(self, samples: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Pad or trim the last output: soxr may be one sample off the rounded total length."""
        total = resampled_length(self._input_samples, self._from_hz, self._to_hz)
        remaining = max(0, total - self._output_samples)
        padding = max(0, remaining - len(samples))
        return np.concatenate([samples, np.zeros(padding, np.float32)])[:remaining]


def resampled_length(samples: int, from_hz: int, to_hz: int) -> int:
    """Length of a whole stream of `samples` after resampling: rounded, with halves rounded up."""
    return (2 * samples * to_hz + from_hz) // (2 * from_hz)
