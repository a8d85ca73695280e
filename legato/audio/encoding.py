"""What every encoder promises: fed packet by packet, in order, finished once; its bytes may be sent on as they come.

What a finished file has better at its start (sizes, counts) is known only at the end: `finish` returns it as patches,
which a file takes and a socket ignores. Owns the check of the packets' order, one for each encoder. Knows no format.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from legato.errors import NonFiniteError, StateError
from legato.flow import Packet


@dataclass(frozen=True, slots=True)
class Patch:
    """Bytes that replace as many at `offset` of everything the encoder has returned."""

    offset: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Ending:
    """The last bytes of an encoding, and the patches for whoever can still reach its start."""

    tail: bytes
    patches: tuple[Patch, ...] = ()


class Encoder(Protocol):
    """A stateful encoder of one stream."""

    def encode(self, packet: Packet) -> bytes:
        """Take the next packet; return what is ready. `StateError` if it does not follow the last one."""

    def finish(self) -> Ending:
        """No more packets: flush and close. May be called once."""


class PacketOrder:
    """Checks that packets are those of one stream at one rate, in order, finite, and none after the end."""

    def __init__(self, sample_rate_hz: int) -> None:
        self._sample_rate_hz = sample_rate_hz
        self._finished = False
        self.samples = 0

    def take(self, packet: Packet) -> None:
        """Count `packet`."""
        if self._finished:
            raise StateError("a packet was given to an encoder that is finished")
        if packet.sample_rate_hz != self._sample_rate_hz:
            raise StateError(
                f"a packet at {packet.sample_rate_hz} Hz, but the encoder runs at {self._sample_rate_hz} Hz"
            )
        if packet.first_sample != self.samples:
            raise StateError(f"a packet starts at sample {packet.first_sample}, but {self.samples} came before it")
        if not np.isfinite(packet.float32()).all():
            raise NonFiniteError("a packet holds samples that are not finite; they are never written")
        self.samples += packet.sample_count

    def finish(self) -> None:
        """Count the end."""
        if self._finished:
            raise StateError("an encoder was finished twice")
        self._finished = True
