"""The encoders themselves: samples alone, WAV by hand, FLAC, MP3 and Opus through libsndfile; one for each stream.

An encoder owns what its format carries across packets (sizes, bit reservoir, pages) from its first packet to `finish`.
Knows no files and no sockets.
"""

from __future__ import annotations

import io
import struct

import numpy as np
import soundfile

from legato.audio.aac import AacEncoder
from legato.audio.encoding import Encoder, Ending, PacketOrder, Patch
from legato.audio.formats import AudioFormat
from legato.errors import StateError
from legato.flow import Packet

UNKNOWN_SIZE = 0xFFFFFFFF
"""What both sizes of a WAV header say while its length is not known: read to the end of the stream."""

_HEADER_BYTES = 44


class PcmEncoder:
    """Samples alone, s16le: an even number of bytes at any time."""

    def __init__(self, sample_rate_hz: int) -> None:
        self._order = PacketOrder(sample_rate_hz)

    def encode(self, packet: Packet) -> bytes:
        """The packet's samples."""
        self._order.take(packet)
        return packet.int16().tobytes()

    def finish(self) -> Ending:
        """Nothing is left."""
        self._order.finish()
        return Ending(b"")


class WavEncoder:
    """One RIFF header, then samples. The header goes out with the first bytes, sizes unknown; `finish` patches both.

    Past 4 GiB (24 hours) the sizes do not fit their field and stay unknown.
    """

    def __init__(self, sample_rate_hz: int) -> None:
        self._order = PacketOrder(sample_rate_hz)
        self._header = wav_header(sample_rate_hz)

    def encode(self, packet: Packet) -> bytes:
        """The packet's samples, after the header if it is the first."""
        self._order.take(packet)
        return self._take_header() + packet.int16().tobytes()

    def finish(self) -> Ending:
        """The header's two sizes as patches."""
        self._order.finish()
        data_bytes = 2 * self._order.samples
        if data_bytes + _HEADER_BYTES - 8 >= UNKNOWN_SIZE:
            return Ending(self._take_header())
        sizes = (Patch(4, struct.pack("<I", data_bytes + _HEADER_BYTES - 8)), Patch(40, struct.pack("<I", data_bytes)))
        return Ending(self._take_header(), sizes)

    def _take_header(self) -> bytes:
        header, self._header = self._header, b""
        return header


def wav_header(sample_rate_hz: int) -> bytes:
    """44 bytes of a RIFF header for mono s16le whose length is not known yet."""
    form = struct.pack("<4sIHHIIHH", b"fmt ", 16, 1, 1, sample_rate_hz, 2 * sample_rate_hz, 2, 16)
    return struct.pack("<4sI4s", b"RIFF", UNKNOWN_SIZE, b"WAVE") + form + struct.pack("<4sI", b"data", UNKNOWN_SIZE)


class _Spool(io.RawIOBase):
    """The file that libsndfile believes it writes: new bytes wait to be taken, returns to taken ones become patches."""

    def __init__(self) -> None:
        self._taken = 0
        self._position = 0
        self._waiting = bytearray()
        self.patches: list[Patch] = []

    def write(self, data: bytes, /) -> int:  # type: ignore[override]
        piece = bytes(data)
        before = max(0, min(len(piece), self._taken - self._position))
        if before:
            self.patches.append(Patch(self._position, piece[:before]))
        if before < len(piece):
            at = self._position + before - self._taken
            self._waiting[at : at + len(piece) - before] = piece[before:]
        self._position += len(piece)
        return len(piece)

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        end = self._taken + len(self._waiting)
        self._position = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: end}[whence]
        return self._position

    def tell(self) -> int:
        return self._position

    def take(self) -> bytes:
        taken = bytes(self._waiting)
        self._taken += len(taken)
        self._waiting.clear()
        return taken


_MP3_LEVEL = 0.5
"""Half way between libsndfile's best and smallest: 80 kbit/s at 24 kHz."""


class LibraryEncoder:
    """FLAC, MP3 and Opus through libsndfile. FLAC gets the 16 bit samples, the lossy formats the floats, clipped."""

    def __init__(self, sample_rate_hz: int, *, container: str, subtype: str, patchable: bool) -> None:
        self._order = PacketOrder(sample_rate_hz)
        self._drops_info_frame = subtype == "MPEG_LAYER_III" and not patchable
        self._spool = _Spool()
        self._lossless = subtype.startswith("PCM")
        constant_rate = subtype == "MPEG_LAYER_III"  # a decoder can then tell the length of what has no info frame
        self._file = soundfile.SoundFile(
            self._spool,
            "w",
            samplerate=sample_rate_hz,
            channels=1,
            format=container,
            subtype=subtype,
            bitrate_mode="CONSTANT" if constant_rate else None,
            compression_level=_MP3_LEVEL if constant_rate else None,
        )

    def encode(self, packet: Packet) -> bytes:
        """Bytes of the format that are ready; often none, because frames and pages span packets."""
        self._order.take(packet)
        self._file.write(packet.int16() if self._lossless else np.clip(packet.float32(), -1.0, 1.0))
        return self._take()

    def finish(self) -> Ending:
        """Flush the library's own delay and close the container."""
        self._order.finish()
        self._file.close()
        return Ending(self._take(), tuple(self._spool.patches))

    def _take(self) -> bytes:
        taken = self._spool.take()
        if taken and self._drops_info_frame:
            self._drops_info_frame = False
            return taken[mp3_frame_bytes(taken) :]
        return taken


def mp3_frame_bytes(data: bytes) -> int:
    """Length of the MPEG layer III frame at the start of `data` (ISO/IEC 11172-3 and 13818-3, 2.4.2.3)."""
    if len(data) < 4 or data[0] != 0xFF or data[1] & 0xE6 != 0xE2:
        raise StateError(f"no MPEG layer III frame starts with {data[:4].hex()}")
    version = data[1] >> 3 & 3  # 3: MPEG 1, 2: MPEG 2, 0: MPEG 2.5
    kbps = (_KBPS_1 if version == 3 else _KBPS_2)[data[2] >> 4]
    rate_hz = (44100, 48000, 32000)[data[2] >> 2 & 3] >> {3: 0, 2: 1, 0: 2}[version]
    return (144_000 if version == 3 else 72_000) * kbps // rate_hz + (data[2] >> 1 & 1)


_KBPS_1 = (0, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320)
_KBPS_2 = (0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160)


_LIBRARY_FORMATS = {
    AudioFormat.FLAC: ("FLAC", "PCM_16"),
    AudioFormat.MP3: ("MP3", "MPEG_LAYER_III"),
    AudioFormat.OPUS: ("OGG", "OPUS"),
}


def make_encoder(kind: AudioFormat, sample_rate_hz: int, *, patchable: bool) -> Encoder:
    """A fresh encoder for one stream at `sample_rate_hz`.

    `patchable`: the patches of `finish` will be put in place. If not, MP3 goes without the info frame at its start,
    which would state a false length; a decoder then plays its 1,105 samples of delay as silence.
    """
    if kind is AudioFormat.PCM:
        return PcmEncoder(sample_rate_hz)
    if kind is AudioFormat.WAV:
        return WavEncoder(sample_rate_hz)
    if kind is AudioFormat.AAC:
        return AacEncoder(sample_rate_hz)
    container, subtype = _LIBRARY_FORMATS[kind]
    return LibraryEncoder(sample_rate_hz, container=container, subtype=subtype, patchable=patchable)
