"""The audio formats that Legato writes, by name, file ending and media type. Owns no state; imports no library."""

from __future__ import annotations

from enum import Enum
from pathlib import Path

from legato.errors import UnsupportedError


class AudioFormat(Enum):
    """A format of encoded speech, always mono at the codec's own rate."""

    WAV = "wav"
    """16 bit PCM in RIFF; exact sizes in a finished file, 0xFFFFFFFF in a stream."""
    FLAC = "flac"
    """The same 16 bit samples, lossless."""
    MP3 = "mp3"
    OPUS = "opus"
    """Opus in Ogg."""
    AAC = "aac"
    """AAC-LC in ADTS, by the program ffmpeg where it is installed."""
    PCM = "pcm"
    """Samples alone: signed 16 bit, little-endian, no header."""

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
_ENDINGS = {".ogg": AudioFormat.OPUS, ".raw": AudioFormat.PCM, **{f".{kind.value}": kind for kind in AudioFormat}}


def format_named(name: str) -> AudioFormat:
    """The format called `name` in any case; `UnsupportedError` with the names that exist."""
    try:
        return AudioFormat(name.lower())
    except ValueError:
        names = ", ".join(kind.value for kind in AudioFormat)
        raise UnsupportedError(f"no audio format {name!r}; there are {names}", field="format") from None


def format_of_path(path: Path) -> AudioFormat:
    """The format that a file's ending asks for; `UnsupportedError` with the endings that exist."""
    kind = _ENDINGS.get(path.suffix.lower())
    if kind is None:
        raise UnsupportedError(
            f"the ending of {path.name!r} names no audio format; end it in {', '.join(sorted(_ENDINGS))}",
            field="output",
        )
    return kind
