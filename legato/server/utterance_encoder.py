"""Encodes the audio of one utterance for a socket: gain, resampling, format.

An `UtteranceEncoder` belongs to the connection, from the utterance's first packet to its end. Call
its methods through `SessionRunner.encode`, which runs them in a thread if the format needs one.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from legato.audio.formats import AudioFormat
from legato.server.encoding import StreamEncoder
from legato.types import FinishReason, Packet, StreamId


class UtteranceEncoder:
    """Encodes packets to the bytes of a format. Samples outside [-1, 1] after `gain` are clipped, never wrapped."""

    def __init__(self, audio_format: AudioFormat, from_hz: int, to_hz: int, gain: float = 1.0) -> None:
        self.kind = audio_format
        self.sent_bytes = 0
        self._encoder = StreamEncoder(audio_format, from_hz, to_hz, patchable=False)
        self._from_hz = from_hz
        self._gain = gain
        self._input_samples = 0

    @property
    def samples(self) -> int:
        """Samples encoded so far, at the output rate. In PCM these are the samples of the bytes that were returned."""
        return self._encoder.samples

    def encode(self, packet: Packet) -> bytes:
        """The bytes that are ready after `packet`. Does not end the encoder, also for the last packet: see `finish`."""
        self._input_samples = packet.first_sample + packet.sample_count
        if self._gain != 1.0:
            amplified = packet.float32() * np.float32(self._gain)
            packet = replace(packet, float32_le=amplified.astype("<f4").tobytes())
        return self._count(self._encoder.encode(replace(packet, last=False, finish_reason=None)))

    def finish(self) -> bytes:
        """End the encoder; returns the bytes that resampler and encoder still held."""
        end = Packet(
            stream=StreamId(0),
            first_sample=self._input_samples,
            frames=0,
            sample_rate_hz=self._from_hz,
            float32_le=b"",
            last=True,
            finish_reason=FinishReason.EOS,
        )
        return self._count(self._encoder.encode(end))

    def abort(self) -> None:
        """Stop the encoder's process, if it has one. Never waits; idempotent."""
        self._encoder.abort()

    def _count(self, data: bytes) -> bytes:
        self.sent_bytes += len(data)
        return data
