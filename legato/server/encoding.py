"""One stream's sound on its way to one client: resampled if asked, encoded packet by packet, closed with the last one.

Owns the encoder and the resampler of one stream from its first packet to its last. Blocking work for the bridge's
threads, one packet at a time; knows no socket.
"""

from __future__ import annotations

import time

from legato.audio.aac import ffmpeg_path
from legato.audio.encoders import make_encoder
from legato.audio.encoding import Patch
from legato.audio.formats import AudioFormat, format_named
from legato.audio.resample import Resampler
from legato.errors import UnsupportedError
from legato.flow import Packet
from legato.server.schemas import RATES_HZ

_OPUS_RATES_HZ = (8_000, 12_000, 16_000, 24_000, 48_000)


def chosen_format(name: str) -> AudioFormat:
    """The format that a request names; AAC is refused here, before any compute, where its encoder is not installed."""
    kind = format_named(name)
    if kind is AudioFormat.AAC:
        ffmpeg_path()
    return kind


def chosen_rate(asked_hz: int | None, own_hz: int, kind: AudioFormat) -> int:
    """The rate of the answer: the model's own unless asked otherwise."""
    if asked_hz is None or asked_hz == own_hz:
        return own_hz
    allowed = _OPUS_RATES_HZ if kind is AudioFormat.OPUS else RATES_HZ
    if asked_hz not in allowed:
        raise UnsupportedError(
            f"sample_rate {asked_hz} is not supported for {kind.value}; there are {', '.join(map(str, allowed))}",
            field="sample_rate",
        )
    return asked_hz


class SpeechEncoding:
    """Packets in, bytes of the format out."""

    def __init__(self, kind: AudioFormat, from_hz: int, to_hz: int, *, patchable: bool) -> None:
        self.sample_rate_hz = to_hz
        self.patches: tuple[Patch, ...] = ()
        self.seconds = 0.0
        """Time spent so far."""
        self._encoder = make_encoder(kind, to_hz, patchable=patchable)
        self._resampler = Resampler(from_hz, to_hz) if from_hz != to_hz else None

    def take(self, packet: Packet) -> bytes:
        """The bytes that are ready after `packet`; with the last packet all that are left."""
        began_s = time.perf_counter()
        resampled = self._resampler.take(packet) if self._resampler else packet
        data = self._encoder.encode(resampled)
        if packet.last:
            ending = self._encoder.finish()
            data += ending.tail
            self.patches = ending.patches
        self.seconds += time.perf_counter() - began_s
        return data


def patched(data: bytes, patches: tuple[Patch, ...]) -> bytes:
    """A whole file with what its encoder knew only at the end put in its place."""
    whole = bytearray(data)
    for patch in patches:
        whole[patch.offset : patch.offset + len(patch.data)] = patch.data
    return bytes(whole)
