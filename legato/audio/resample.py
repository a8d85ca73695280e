"""One stream at another rate, packet by packet, with nothing lost at pauses or at the end.

A `Resampler` owns the filter's memory of one stream from its first packet to its last. Time does not reach it: a pause
between packets is nothing, and only the packet marked `last` flushes the filter. The whole has round(n * to / from)
samples, for any split into packets what a resampling of the whole at once gives. Knows no format.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import soxr

from legato.errors import StateError
from legato.flow import Packet


class Resampler:
    """Packets at `from_hz` in, packets at `to_hz` out; equal rates pass them on as they are."""

    def __init__(self, from_hz: int, to_hz: int) -> None:
        self._from_hz = from_hz
        self._to_hz = to_hz
        self._taken = 0
        self._given = 0
        self._stream = soxr.ResampleStream(from_hz, to_hz, 1, dtype="float32", quality="HQ")

    def take(self, packet: Packet) -> Packet:
        """The same stretch as far as the filter lets it go, often a little less; the last packet brings the rest."""
        if packet.sample_rate_hz != self._from_hz:
            raise StateError(f"a packet at {packet.sample_rate_hz} Hz, but this resampler takes {self._from_hz} Hz")
        if packet.first_sample != self._taken:
            raise StateError(f"a packet starts at sample {packet.first_sample}, but {self._taken} came before it")
        self._taken += packet.sample_count
        if self._from_hz == self._to_hz:
            return packet
        samples = self._stream.resample_chunk(packet.float32(), last=packet.last)
        if packet.last:
            samples = self._exactly(samples)
        first = self._given
        self._given += len(samples)
        data = np.ascontiguousarray(samples, dtype="<f4").tobytes()
        return replace(packet, first_sample=first, sample_rate_hz=self._to_hz, float32_le=data)

    def _exactly(self, samples: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """The library may end a sample early or late; the stream's length is a fact of its rates."""
        wanted = (2 * self._taken * self._to_hz + self._from_hz) // (2 * self._from_hz) - self._given
        missing = max(0, wanted - len(samples))
        return np.concatenate([samples, np.zeros(missing, np.float32)])[: max(wanted, 0)]
