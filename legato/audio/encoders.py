"""Streaming encoders: PCM, WAV, and FLAC, MP3 and Opus through libsndfile. AAC is in `aac`.

Create one encoder per stream. It holds the codec state that spans packets (sizes, bit reservoir, Ogg pages) until
`finish`. Encoders return bytes; they do no I/O.
"""

from __future__ import annotations

import io
import struct

import numpy as np
import soundfile

from legato.audio.aac import AacEncoder
from legato.audio.encoding import Encoder, PacketValidator, Patch, Trailer
from legato.audio.formats import AudioFormat
from legato.audio.mpeg import parse_frame
from legato.errors import StateError
from legato.types import Packet

UNKNOWN_SIZE = 0xFFFFFFFF
"""Value of both size fields in the WAV header of a stream: the length is unknown, read to the end."""

WAV_HEADER_BYTES = 44
_STREAMINFO_END = 42
"""Size of the first bytes of a FLAC file, up to the end of STREAMINFO (RFC 9639, 8.2)."""


class PcmEncoder:
    """Raw samples, s16le. Always returns whole samples."""

    def __init__(self, sample_rate_hz: int) -> None:
        self._validator = PacketValidator(sample_rate_hz)

    def encode(self, packet: Packet) -> bytes:
        """The packet's samples as bytes."""
        self._validator.check(packet)
        return packet.int16().tobytes()

    def finish(self) -> Trailer:
        """End the stream; there is nothing to flush."""
        self._validator.finish()
        return Trailer(b"")


class WavEncoder:
    """A RIFF header with unknown sizes, then s16le samples. `finish` returns patches with the actual sizes.

    Beyond 4 GiB (24 hours) the sizes do not fit into 32 bits and remain unknown.
    """

    def __init__(self, sample_rate_hz: int) -> None:
        self._validator = PacketValidator(sample_rate_hz)
        self._header = wav_header(sample_rate_hz)

    def encode(self, packet: Packet) -> bytes:
        """The packet's samples as bytes, preceded by the header for the first packet."""
        self._validator.check(packet)
        return self._take_header() + packet.int16().tobytes()

    def finish(self) -> Trailer:
        """Return the two size fields of the header as patches."""
        self._validator.finish()
        sizes = _wav_sizes(self._validator.samples)
        patches = () if sizes is None else (Patch(4, sizes[0]), Patch(40, sizes[1]))
        return Trailer(self._take_header(), patches)

    def _take_header(self) -> bytes:
        header, self._header = self._header, b""
        return header


def wav_header(sample_rate_hz: int) -> bytes:
    """The 44-byte RIFF header for mono s16le of unknown length."""
    format_header = struct.pack("<4sIHHIIHH", b"fmt ", 16, 1, 1, sample_rate_hz, 2 * sample_rate_hz, 2, 16)
    return (
        struct.pack("<4sI4s", b"RIFF", UNKNOWN_SIZE, b"WAVE")
        + format_header
        + struct.pack("<4sI", b"data", UNKNOWN_SIZE)
    )


def _wav_sizes(samples: int) -> tuple[bytes, bytes] | None:
    """Both size fields of a WAV header; None if they do not fit. The RIFF size excludes "RIFF" and the field itself."""
    data_bytes = 2 * samples
    riff_bytes = data_bytes + WAV_HEADER_BYTES - 8
    return None if riff_bytes >= UNKNOWN_SIZE else (struct.pack("<I", riff_bytes), struct.pack("<I", data_bytes))


def header_bytes(kind: AudioFormat) -> int:
    """Size of the part of a file that `with_length` changes; 0 for formats without a length in their header."""
    return {AudioFormat.WAV: WAV_HEADER_BYTES, AudioFormat.FLAC: _STREAMINFO_END}.get(kind, 0)


def with_length(kind: AudioFormat, start: bytes, total_samples: int) -> bytes:
    """The start of a file, with the length of the stream in its header, if the format has one."""
    if kind is AudioFormat.WAV:
        sizes = _wav_sizes(total_samples)
        return start if sizes is None else start[:4] + sizes[0] + start[8:40] + sizes[1] + start[44:]
    if kind is AudioFormat.FLAC:
        info = int.from_bytes(start[8:_STREAMINFO_END], "big")
        info = info & ~((1 << 36) - 1 << 128) | (total_samples & (1 << 36) - 1) << 128  # 36 bits before the MD5 sum
        return start[:8] + info.to_bytes(34, "big") + start[_STREAMINFO_END:]
    return start


class _StreamFile(io.RawIOBase):
    """A write-only file object for libsndfile whose content is consumed while it is written.

    Consumed bytes (offsets below `_consumed`) are no longer held here: writes to them, as when the library rewrites its
    header, are recorded as patches.
    """

    def __init__(self) -> None:
        self._consumed = 0
        self._position = 0
        self._pending = bytearray()
        self.patches: list[Patch] = []

    def write(self, data: bytes, /) -> int:  # type: ignore[override]
        block = bytes(data)
        patched = max(0, min(len(block), self._consumed - self._position))  # leading bytes that were consumed already
        if patched:
            self.patches.append(Patch(self._position, block[:patched]))
        if patched < len(block):
            start = self._position + patched - self._consumed
            self._pending[start : start + len(block) - patched] = block[patched:]
        self._position += len(block)
        return len(block)

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        end = self._consumed + len(self._pending)
        self._position = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: end}[whence]
        return self._position

    def tell(self) -> int:
        return self._position

    def take(self) -> bytes:
        """Consume and return the pending bytes."""
        data = bytes(self._pending)
        self._consumed += len(data)
        self._pending.clear()
        return data


_MP3_COMPRESSION = 0.5
"""libsndfile's scale from 0 (best quality) to 1 (smallest): 80 kbit/s at 24 kHz."""


class SndfileEncoder:
    """FLAC, MP3 and Opus through libsndfile. FLAC encodes the 16-bit samples, the lossy formats the clipped floats."""

    def __init__(self, sample_rate_hz: int, *, container: str, subtype: str, patchable: bool) -> None:
        self._validator = PacketValidator(sample_rate_hz)
        self._drops_info_frame = subtype == "MPEG_LAYER_III" and not patchable
        self._file_object = _StreamFile()
        self._lossless = subtype.startswith("PCM")
        # At a constant bit rate, decoders can compute the duration of an MP3 stream that has no info frame.
        constant_rate = subtype == "MPEG_LAYER_III"
        self._file = soundfile.SoundFile(
            self._file_object,
            "w",
            samplerate=sample_rate_hz,
            channels=1,
            format=container,
            subtype=subtype,
            bitrate_mode="CONSTANT" if constant_rate else None,
            compression_level=_MP3_COMPRESSION if constant_rate else None,
        )

    def encode(self, packet: Packet) -> bytes:
        """The bytes that are complete; often none, because frames and pages span packets."""
        self._validator.check(packet)
        self._file.write(packet.int16() if self._lossless else np.clip(packet.float32(), -1.0, 1.0))
        return self._take()

    def finish(self) -> Trailer:
        """Flush the codec's delay and close the container."""
        self._validator.finish()
        self._file.close()
        return Trailer(self._take(), tuple(self._file_object.patches))

    def _take(self) -> bytes:
        data = self._file_object.take()
        if data and self._drops_info_frame:
            self._drops_info_frame = False
            return data[mp3_frame_bytes(data) :]
        return data


def mp3_frame_bytes(data: bytes) -> int:
    """Length in bytes of the MPEG layer III frame at the start of `data`."""
    frame = parse_frame(data)
    if frame is None:
        raise StateError(f"{data[:4].hex()} is not the start of an MPEG layer III frame")
    return frame.size_bytes


_SNDFILE_FORMATS = {
    AudioFormat.FLAC: ("FLAC", "PCM_16"),
    AudioFormat.MP3: ("MP3", "MPEG_LAYER_III"),
    AudioFormat.OPUS: ("OGG", "OPUS"),
}


def make_encoder(kind: AudioFormat, sample_rate_hz: int, *, patchable: bool) -> Encoder:
    """Create an encoder for one stream at `sample_rate_hz`.

    `patchable`: the caller applies the patches returned by `finish`. Otherwise MP3 omits its info frame, which would
    state a wrong length; decoders then play the encoder delay of 1,105 samples as silence.
    """
    if kind is AudioFormat.PCM:
        return PcmEncoder(sample_rate_hz)
    if kind is AudioFormat.WAV:
        return WavEncoder(sample_rate_hz)
    if kind is AudioFormat.AAC:
        return AacEncoder(sample_rate_hz)
    container, subtype = _SNDFILE_FORMATS[kind]
    return SndfileEncoder(sample_rate_hz, container=container, subtype=subtype, patchable=patchable)
