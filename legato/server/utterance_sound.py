"""The sound of one utterance on its way to a socket: volume, rate and format, each with its own memory.

Owned by the connection from the utterance's first packet to its end. Blocking; called in the bridge's threads.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from legato.audio.formats import AudioFormat
from legato.flow import FinishReason, Packet, StreamId
from legato.server.encoding import SpeechEncoding


class UtteranceSound:
    """`gain` multiplies the samples; what leaves [-1, 1] is clipped where it becomes 16 bit, never wrapped."""

    def __init__(self, kind: AudioFormat, from_hz: int, to_hz: int, gain: float = 1.0) -> None:
        self.samples = 0
        """At the rate of the answer."""
        self.sent_bytes = 0
        self._encoding = SpeechEncoding(kind, from_hz, to_hz, patchable=False)
        self._from_hz = from_hz
        self._to_hz = to_hz
        self._gain = gain
        self._taken = 0

    def take(self, packet: Packet) -> bytes:
        """The bytes that are ready after `packet`. Its end is told by `finish`, never by the packet."""
        self._taken = packet.first_sample + packet.sample_count
        if self._gain != 1.0:
            louder = packet.float32() * np.float32(self._gain)
            packet = replace(packet, float32_le=louder.astype("<f4").tobytes())
        return self._count(self._encoding.take(replace(packet, last=False, finish_reason=None)), packet)

    def finish(self) -> bytes:
        """The bytes that were held back."""
        last = Packet(StreamId(0), self._taken, 0, self._from_hz, b"", last=True, finish_reason=FinishReason.EOS)
        return self._count(self._encoding.take(last), last)

    def _count(self, data: bytes, packet: Packet) -> bytes:
        self.sent_bytes += len(data)
        self.samples = round((packet.first_sample + packet.sample_count) * self._to_hz / self._from_hz)
        return data
