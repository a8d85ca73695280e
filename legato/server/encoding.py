"""Turn the packets of one stream into bytes of the response: resample if requested, then encode.

A `StreamEncoder` belongs to one response and holds the resampler and encoder state from the first packet to the last.
`Bridge.encode` runs it, in a thread if the format needs one, one packet at a time.
"""

from __future__ import annotations

import time
from dataclasses import replace

from legato.audio.aac import AacEncoder, ffmpeg_path
from legato.audio.encoders import make_encoder
from legato.audio.encoding import Patch
from legato.audio.formats import AudioFormat, parse_format
from legato.audio.resample import Resampler, resampled_length
from legato.errors import UnsupportedError
from legato.server.openai.schemas import RATES_HZ
from legato.types import Packet

_OPUS_RATES_HZ = (8_000, 12_000, 16_000, 24_000, 48_000)


def resolve_format(name: str) -> AudioFormat:
    """The requested format. AAC is refused here, before any computation, if its encoder is not installed."""
    kind = parse_format(name)
    if kind is AudioFormat.AAC:
        ffmpeg_path()
    return kind


def resolve_sample_rate(requested_hz: int | None, model_hz: int, kind: AudioFormat) -> int:
    """The sample rate of the response: the model's rate unless the request names another supported one."""
    if requested_hz is None or requested_hz == model_hz:
        return model_hz
    supported = _OPUS_RATES_HZ if kind is AudioFormat.OPUS else RATES_HZ
    if requested_hz not in supported:
        raise UnsupportedError(
            f"sample_rate {requested_hz} is not supported for {kind.value}: use {', '.join(map(str, supported))}",
            field="sample_rate",
        )
    return requested_hz


class StreamEncoder:
    """Encodes one stream, packet by packet. `patchable`: the caller applies `patches` to the finished file."""

    def __init__(self, kind: AudioFormat, from_hz: int, to_hz: int, *, patchable: bool) -> None:
        self.kind = kind
        self._from_hz = from_hz
        self._promised_samples: int | None = None
        self.sample_rate_hz = to_hz
        self.patches: tuple[Patch, ...] = ()
        """Set with the last packet."""
        self.seconds = 0.0
        """Time spent in `encode` so far."""
        self.samples = 0
        """Samples at `sample_rate_hz` that were encoded so far. The resampler may hold back some until the end."""
        self._encoder = make_encoder(kind, to_hz, patchable=patchable)
        self._resampler = Resampler(from_hz, to_hz) if from_hz != to_hz else None

    def encode(self, packet: Packet) -> bytes:
        """The bytes that are complete after `packet`; the last packet also flushes the encoder."""
        started_s = time.perf_counter()
        if packet.last and self._promised_samples is not None:
            packet = _filled_up(packet, self._promised_samples)
        resampled = self._resampler.resample(packet) if self._resampler else packet
        self.samples += resampled.sample_count
        data = self._encoder.encode(resampled)
        if packet.last:
            trailer = self._encoder.finish()
            data += trailer.data
            self.patches = trailer.patches
        self.seconds += time.perf_counter() - started_s
        return data

    def promise_length(self, samples: int) -> int:
        """Promise that the stream has `samples` at `from_hz`; returns its length at `sample_rate_hz`.

        Call it before the last packet. If the stream ends earlier, silence fills it up.
        """
        self._promised_samples = samples
        return resampled_length(samples, self._from_hz, self.sample_rate_hz)

    def abort(self) -> None:
        """Stop the encoder's process, if it has one; a call in another thread then fails. Never waits; idempotent."""
        if isinstance(self._encoder, AacEncoder):
            self._encoder.abort()


def _filled_up(packet: Packet, total_samples: int) -> Packet:
    """The last packet with silence up to the stated length of the stream."""
    missing = total_samples - packet.first_sample - packet.sample_count
    return replace(packet, float32_le=packet.float32_le + bytes(4 * missing)) if missing > 0 else packet


def apply_patches(data: bytes, patches: tuple[Patch, ...]) -> bytes:
    """A whole file with the values that its encoder knew only at the end (sizes, frame counts) filled in."""
    patched = bytearray(data)
    for patch in patches:
        patched[patch.offset : patch.offset + len(patch.data)] = patch.data
    return bytes(patched)
