"""The encoder protocol: packets in order, then `finish` once. All returned bytes can be sent immediately.

Some header fields (sizes, frame counts) are known only at the end. `finish` returns them as patches, which are applied
to files and ignored for sockets.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from legato.errors import NonFiniteError, StateError
from legato.types import Packet


@dataclass(frozen=True, slots=True)
class Patch:
    """`data` overwrites the bytes at `offset` of the encoder's whole output."""

    offset: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Trailer:
    """The last bytes of an encoding, and the patches for outputs that can be rewritten."""

    data: bytes
    patches: tuple[Patch, ...] = ()


class Encoder(Protocol):
    """A stateful encoder of one stream."""

    def encode(self, packet: Packet) -> bytes:
        """Encode the next packet and return the bytes that are complete. `StateError` if packets are out of order."""

    def finish(self) -> Trailer:
        """Flush and close the encoding. Call it once, after the last packet."""


class PacketValidator:
    """Checks that packets belong to one stream: same sample rate, contiguous, finite, none after the end."""

    def __init__(self, sample_rate_hz: int) -> None:
        self._sample_rate_hz = sample_rate_hz
        self._finished = False
        self.samples = 0
        """Samples received so far."""

    def check(self, packet: Packet) -> None:
        """Validate the next packet and count its samples."""
        if self._finished:
            raise StateError("the encoder received a packet after finish()")
        if packet.sample_rate_hz != self._sample_rate_hz:
            raise StateError(
                f"the encoder expects packets at {self._sample_rate_hz} Hz, but received {packet.sample_rate_hz} Hz"
            )
        if packet.first_sample != self.samples:
            raise StateError(
                f"the encoder expects a packet that starts at sample {self.samples}, "
                f"but received one that starts at {packet.first_sample}"
            )
        if not np.isfinite(packet.float32()).all():
            raise NonFiniteError("a packet has non-finite samples, which cannot be encoded")
        self.samples += packet.sample_count

    def finish(self) -> None:
        """Mark the end of the stream."""
        if self._finished:
            raise StateError("finish() was called twice on an encoder")
        self._finished = True
