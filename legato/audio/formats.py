"""Output audio formats: names, file extensions and media types. The encoders are in `encoders` and `aac`."""

from __future__ import annotations

from enum import Enum
from pathlib import Path

from legato.errors import UnsupportedError


class AudioFormat(Enum):
    """An output format. Always mono."""

    WAV = "wav"
    """16-bit PCM in RIFF; exact sizes in a finished file, 0xFFFFFFFF in a stream."""
    FLAC = "flac"
    """Lossless, 16-bit."""
    MP3 = "mp3"
    OPUS = "opus"
    """Opus in Ogg."""
    AAC = "aac"
    """AAC-LC in ADTS; needs the program ffmpeg."""
    PCM = "pcm"
    """Raw samples: signed 16-bit, little-endian, no header."""

    @property
    def media_type(self) -> str:
        """The content type of an HTTP body in this format."""
        return _MEDIA_TYPES[self]


_MEDIA_TYPES = {
    AudioFormat.WAV: "audio/wav",
    AudioFormat.FLAC: "audio/flac",
    AudioFormat.MP3: "audio/mpeg",
    AudioFormat.OPUS: "audio/ogg",
    AudioFormat.AAC: "audio/aac",
    AudioFormat.PCM: "audio/pcm",
}
_EXTENSIONS = {".ogg": AudioFormat.OPUS, ".raw": AudioFormat.PCM, **{f".{kind.value}": kind for kind in AudioFormat}}


def parse_format(name: str) -> AudioFormat:
    """The format with this name (case-insensitive). Raises `UnsupportedError` if there is none."""
    try:
        return AudioFormat(name.lower())
    except ValueError:
        names = ", ".join(kind.value for kind in AudioFormat)
        raise UnsupportedError(f"unknown audio format {name[:80]!r}: use {names}", field="format") from None


def format_from_path(path: Path) -> AudioFormat:
    """The format for a file's extension. Raises `UnsupportedError` if there is none."""
    kind = _EXTENSIONS.get(path.suffix.lower())
    if kind is None:
        raise UnsupportedError(
            f"unknown audio file extension in {path.name!r}: use {', '.join(sorted(_EXTENSIONS))}",
            field="output",
        )
    return kind
