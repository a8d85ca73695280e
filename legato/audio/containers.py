"""Find the recordings in an audio file, and complete headers that state no length.

Files that were streamed or joined are common as references: WAV and FLAC whose length was unknown when they were
written, MP3 without an info frame, and files of one format appended to each other, of which decoders read the first one
only. `split_recordings` returns one file for each recording, with a length in its header. Functions are pure. Data in
unknown or damaged formats is returned unchanged, for the decoder to judge.
"""

from __future__ import annotations

import re
import struct
from itertools import islice

from legato.audio.mpeg import split_mp3

MAX_PARTS = 100
"""Recordings in one file. Each has a second of speech or more, so that a usable file has fewer."""
_UNKNOWN = 0xFFFFFFFF
_MAX_TRAILER = 2**16
"""Bytes of chunks after the samples of a WAV file."""
_MAX_CANDIDATES = 2000
"""Positions at which the last frame of a FLAC file is looked for."""
_FLAC_START = re.compile(rb"fLaC[\x00\x80]\x00\x00\x22")
"""Magic and header of STREAMINFO, which is always first and has 34 bytes (RFC 9639, 8.1)."""
_FLAC_TOTAL_BITS = 36
_FLAC_BLOCKS = {1: 192} | {n: 576 << (n - 2) for n in range(2, 6)} | {n: 256 << (n - 8) for n in range(8, 16)}
"""Code in a frame header -> samples of the frame."""


def split_recordings(data: bytes) -> list[bytes]:
    """The recordings in a file, each as a file of its own. At least one, at most `MAX_PARTS`."""
    if data[:4] == b"RIFF" and data[8:12] == b"WAVE":
        return _split_wav(data)
    if data[:4] == b"fLaC":
        return [_with_flac_length(part) for part in _cut(data, _flac_starts(data))]
    if data[:4] == b"OggS":
        return _cut(data, _ogg_starts(data))
    if data[:4] == b".snd":
        return [_with_au_length(data)]
    return split_mp3(data)


def _cut(data: bytes, starts: list[int]) -> list[bytes]:
    starts = starts[:MAX_PARTS]
    return [data[start:end] for start, end in zip(starts, [*starts[1:], len(data)], strict=True)]


# --- WAV: RIFF, chunks of id, size, content and padding ---------------------------------------------------------------


def _split_wav(data: bytes) -> list[bytes]:
    """Parts that each begin with RIFF. A data chunk of size 0 that is not followed by chunks reaches to the end."""
    parts: list[bytes] = []
    rest = data
    while len(parts) < MAX_PARTS:
        start, size = _wav_data(rest)
        if start is None:
            break
        unknown = size == 0 and not _is_chunk_list(rest, start)
        end = len(rest) if unknown else min(len(rest), start + size + size % 2)
        following = rest.find(b"RIFF", end, end + _MAX_TRAILER)
        if following < 0 or rest[following + 8 : following + 12] != b"WAVE":
            following = len(rest)
        parts.append(_wav_part(rest[:following], start, end))
        rest = rest[following:]
        if not rest:
            return parts
    return [*parts, rest]


def _wav_data(data: bytes) -> tuple[int | None, int]:
    """Offset and stated size of the samples in the first WAV file (RIFF: chunks of id, size, content, padding)."""
    position = 12
    while position + 8 <= len(data):
        name, size = struct.unpack_from("<4sI", data, position)
        if name == b"data":
            return position + 8, size
        position += 8 + size + size % 2
    return None, 0


def _is_chunk_list(data: bytes, position: int) -> bool:
    """Whether chunks follow up to the end, as after an empty data chunk; also true at the end."""
    while position + 8 <= len(data):
        name, size = struct.unpack_from("<4sI", data, position)
        if not all(0x20 <= byte < 0x7F for byte in name):
            return False
        if name == b"RIFF":
            return True
        position += 8 + size + size % 2
    return position >= len(data)


def _wav_part(part: bytes, start: int, end: int) -> bytes:
    """A WAV file with the sizes of its header set to what it has. Unchanged if they are right."""
    sizes = (struct.pack("<I", min(len(part) - 8, _UNKNOWN)), struct.pack("<I", min(end - start, _UNKNOWN)))
    stated = struct.unpack_from("<I", part, start - 4)[0]
    if stated and start + stated <= len(part):
        return part
    return part[:4] + sizes[0] + part[8 : start - 4] + sizes[1] + part[start:]


def _with_au_length(data: bytes) -> bytes:
    """An AU file whose size is 0, with the value for "unknown", at which decoders read to the end."""
    return data[:8] + b"\xff" * 4 + data[12:] if data[8:12] == bytes(4) and len(data) > 32 else data


# --- Ogg (RFC 3533) --------------------------------------------------------------------------------------------------


def _ogg_starts(data: bytes) -> list[int]:
    """The pages that begin a logical stream after pages with content (chained streams), and the first page."""
    starts, position, in_headers = [0], 0, True
    while position + 27 <= len(data) and data[position : position + 4] == b"OggS":
        begins = bool(data[position + 5] & 2)
        if begins and not in_headers:
            starts.append(position)
        in_headers = begins
        segments = data[position + 26]
        position += 27 + segments + sum(data[position + 27 : position + 27 + segments])
    return starts


# --- FLAC (RFC 9639) -------------------------------------------------------------------------------------------------


def _flac_starts(data: bytes) -> list[int]:
    """The starts of FLAC files. Their 8 bytes do not occur by chance."""
    starts = [match.start() for match in islice(_FLAC_START.finditer(data, 8), MAX_PARTS)]
    return [0, *starts]


def _with_flac_length(data: bytes) -> bytes:
    """A FLAC file with the number of samples in STREAMINFO, where it states 0 for "unknown"."""
    if len(data) < 42 or data[4] & 0x7F:
        return data
    info = int.from_bytes(data[8:42], "big")
    shift = 8 * 16  # the MD5 sum follows
    if info >> shift & (1 << _FLAC_TOTAL_BITS) - 1:
        return data
    total = _flac_samples(data, block_size=struct.unpack_from(">H", data, 8)[0])
    if total is None:
        return data
    return data[:8] + (info | total << shift).to_bytes(34, "big") + data[42:]


def _flac_samples(data: bytes, block_size: int) -> int | None:
    """The samples up to the end of the last frame, from its header; None if there is no frame."""
    position = len(data)
    for _ in range(_MAX_CANDIDATES):
        position = max(data.rfind(b"\xff\xf8", 42, position), data.rfind(b"\xff\xf9", 42, position))
        if position < 0:
            return None
        header = _flac_frame(data, position, block_size)
        if header is not None:
            first_sample, samples = header
            return first_sample + samples
    return None


def _flac_frame(data: bytes, position: int, fixed_size: int) -> tuple[int, int] | None:
    """First sample and number of samples of the frame at `position`; None if no frame header is there (9.1)."""
    if len(data) < position + 6 or data[position + 1] & 0xFE != 0xF8:
        return None
    variable = data[position + 1] & 1
    end = position + 4
    number = _coded_number(data[end : end + 7])
    if number is None:
        return None
    value, length = number
    end += length
    code, rate_code = data[position + 2] >> 4, data[position + 2] & 15
    samples = {1: 192, **{n: 576 << (n - 2) for n in range(2, 6)}, **{n: 256 << (n - 8) for n in range(8, 16)}}.get(
        code
    )
    extra = {6: 1, 7: 2}.get(code, 0)
    if extra:
        samples = int.from_bytes(data[end : end + extra], "big") + 1
        end += extra
    end += {12: 1, 13: 2, 14: 2}.get(rate_code, 0)
    if samples is None or rate_code == 15 or end >= len(data) or _crc8(data[position:end]) != data[end]:
        return None
    return (value if variable else value * fixed_size), samples


def _coded_number(data: bytes) -> tuple[int, int] | None:
    """A number in the extended UTF-8 form of frame headers, and its bytes; None if it is malformed."""
    if not data:
        return None
    ones = 0
    while ones < 8 and data[0] >> (7 - ones) & 1:
        ones += 1
    length = max(1, ones)
    if ones in (1, 8) or len(data) < length:
        return None
    value = data[0] & (0x7F >> ones)
    for byte in data[1:length]:
        if byte & 0xC0 != 0x80:
            return None
        value = value << 6 | byte & 0x3F
    return value, length


def _crc8(data: bytes) -> int:
    """CRC-8 with polynomial 7, as in FLAC frame headers."""
    crc = 0
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc << 1 ^ 7) & 0xFF if crc & 0x80 else crc << 1
    return crc
