"""Frames of MPEG audio layer III: their headers, the info frame at the start of a file, and joined files.

An info frame (Xing or Info) states how many frames a file has. Decoders that find none guess the length, and those that
find one stop there, even if another file is appended. `split_mp3` gives every part exactly one. Functions are pure.
Formats: ISO/IEC 11172-3 and 13818-3, 2.4.2.3; ID3v2; the Xing header as its decoders read it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice, pairwise

_KBPS_MPEG1 = (0, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320)
_KBPS_MPEG2 = (0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160)
_INFO_BITRATE = 8
"""Bit rate index of info frames made here: 112 or 64 kbit/s, which gives room for their fields at every rate."""
MAX_FRAMES = 6000
"""Frames that are looked at: 144 s or more, longer than any reference may be."""
_MAX_JUNK = 2**16
"""Bytes between two frames that are skipped."""
_FRAMES_FLAG, _BYTES_FLAG = 1, 2


@dataclass(frozen=True, slots=True)
class Mp3Frame:
    """A layer III frame. `info`: it states the length of a file, and has no audio."""

    start: int
    size_bytes: int
    rate_hz: int
    channels: int
    info: bool

    @property
    def end(self) -> int:
        """Offset of what follows."""
        return self.start + self.size_bytes


def parse_frame(data: bytes, start: int = 0) -> Mp3Frame | None:
    """The frame whose header is at `start`; None if there is none. Its content may be cut off."""
    if len(data) < start + 4 or data[start] != 0xFF or data[start + 1] & 0xE6 != 0xE2:
        return None
    version = data[start + 1] >> 3 & 3  # 3: MPEG 1, 2: MPEG 2, 0: MPEG 2.5
    bitrate, rate = data[start + 2] >> 4, data[start + 2] >> 2 & 3
    if version == 1 or bitrate in (0, 15) or rate == 3:
        return None
    kbps = (_KBPS_MPEG1 if version == 3 else _KBPS_MPEG2)[bitrate]
    rate_hz = (44100, 48000, 32000)[rate] >> {3: 0, 2: 1, 0: 2}[version]
    size = (144_000 if version == 3 else 72_000) * kbps // rate_hz + (data[start + 2] >> 1 & 1)
    channels = 1 if data[start + 3] >> 6 == 3 else 2
    tag = start + 4 + _side_bytes(version, channels) + (0 if data[start + 1] & 1 else 2)
    info = data[tag : tag + 4] in (b"Xing", b"Info") or data[start + 36 : start + 40] == b"VBRI"
    return Mp3Frame(start, size, rate_hz, channels, info)


def split_mp3(data: bytes) -> list[bytes]:
    """The recordings in an MP3 file, each with an info frame; `[data]` if it is none, or a plain one."""
    frames = list(islice(_frames(data), MAX_FRAMES))
    if len(frames) < 2:
        return [data]
    starts = [0]
    for number, (before, frame) in enumerate(pairwise(frames), start=1):
        changed = (before.rate_hz, before.channels) != (frame.rate_hz, frame.channels)
        if frame.info or changed or _is_tag(data, before.end):
            starts.append(number)
    groups = [frames[start:end] for start, end in zip(starts, [*starts[1:], len(frames)], strict=True)]
    if len(groups) == 1 and groups[0][0].info:
        return [data]
    parts: list[bytes] = []
    for group in groups:
        audio = [frame for frame in group if not frame.info]
        if not audio:
            continue
        content = b"".join(data[frame.start : frame.end] for frame in group)
        parts.append(content if group[0].info else _info_frame(data, audio) + content)
    return parts or [data]


def _frames(data: bytes) -> Iterator[Mp3Frame]:
    """All frames, across tags and damaged bytes. Nothing if the data does not begin with a frame or a tag."""
    position = _after_tags(data, 0)
    first = True
    while position + 4 <= len(data):
        frame = parse_frame(data, position)
        if frame is not None and frame.end <= len(data) and (not first or _is_next(data, frame.end)):
            yield frame
            first = False
            position = _after_tags(data, frame.end)
            continue
        if first:
            return
        found = _resynchronized(data, position + 1)
        if found is None:
            return
        position = found


def _is_next(data: bytes, position: int) -> bool:
    position = _after_tags(data, position)
    return position >= len(data) or parse_frame(data, position) is not None


def _resynchronized(data: bytes, position: int) -> int | None:
    """The next offset at which a frame is followed by another frame, a tag or the end."""
    end = min(len(data), position + _MAX_JUNK)
    while (position := data.find(b"\xff", position, end)) >= 0:
        frame = parse_frame(data, position)
        if frame is not None and frame.end <= len(data) and _is_next(data, frame.end):
            return position
        position += 1
    return None


def _is_tag(data: bytes, position: int) -> bool:
    return data[position : position + 3] in (b"ID3", b"TAG") or data[position : position + 8] == b"APETAGEX"


def _after_tags(data: bytes, position: int) -> int:
    """The offset after ID3v2, ID3v1 and APE tags at `position`."""
    while _is_tag(data, position):
        if data[position : position + 3] == b"TAG":
            position += 128
        elif data[position : position + 3] == b"ID3" and len(data) >= position + 10:
            size = 0
            for byte in data[position + 6 : position + 10]:
                size = size << 7 | byte & 0x7F
            position += 10 + size + (10 if data[position + 5] & 0x10 else 0)
        elif len(data) >= position + 32:
            size, flags = struct.unpack_from("<I4xI", data, position + 12)
            position += size + (32 if flags >> 29 & 1 else 0)  # at a header: the size has the items and the footer
        else:
            return len(data)
    return position


def _info_frame(data: bytes, audio: list[Mp3Frame]) -> bytes:
    """An info frame for the frames `audio` of `data`."""
    header = bytearray(data[audio[0].start : audio[0].start + 4])
    header[1] |= 1  # no checksum
    header[2] = _INFO_BITRATE << 4 | header[2] & 0x0C  # no padding
    frame = parse_frame(bytes(header) + bytes(40))
    assert frame is not None, "the header of a valid frame with another bit rate is valid"
    total_bytes = frame.size_bytes + sum(each.size_bytes for each in audio)
    fields = struct.pack(">4sIII", b"Xing", _FRAMES_FLAG | _BYTES_FLAG, len(audio), total_bytes)
    content = bytes(header) + bytes(_side_bytes(header[1] >> 3 & 3, frame.channels)) + fields
    return content.ljust(frame.size_bytes, b"\0")


def _side_bytes(version: int, channels: int) -> int:
    """Bytes of side information after the header."""
    if version == 3:
        return 17 if channels == 1 else 32
    return 9 if channels == 1 else 17
