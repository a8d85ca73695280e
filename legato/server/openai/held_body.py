"""Hold back the start of a response body until its header can state the length of the audio.

A `HeldBody` belongs to one response. Some readers refuse a FLAC file without a length (libsndfile, for example), and
the length is in its first bytes.
"""

from __future__ import annotations

import time

from legato.audio.encoders import header_bytes, with_length
from legato.audio.formats import AudioFormat

HELD_BYTES = 32 * 2**20
"""A longer body is sent without a length, unless the client asked for the complete file."""


class HeldBody:
    """The first bytes of a file, which are not sent yet. `limit_s`: how long they are held; infinite: until the end.

    `needs_header`: hold them at least until the header is complete.
    """

    def __init__(self, kind: AudioFormat, limit_s: float, *, needs_header: bool) -> None:
        self._kind = kind
        self._needed_bytes = header_bytes(kind) if needs_header else 0
        self._until_s = time.monotonic() + limit_s
        self._unlimited = limit_s == float("inf")
        self._held: list[bytes] = []
        self._bytes = 0

    def add(self, data: bytes) -> None:
        """Add encoded bytes."""
        self._held.append(data)
        self._bytes += len(data)

    @property
    def has_header(self) -> bool:
        """Whether the header of the file is here, so that `take` can state a length."""
        return self._bytes >= self._needed_bytes

    @property
    def due(self) -> bool:
        """Whether the bytes must be sent now, without a length: there is a header, and the time is over."""
        if self._unlimited or not self.has_header:
            return False
        return time.monotonic() >= self._until_s or self._bytes > HELD_BYTES

    def take(self, total_samples: int | None = None) -> bytes:
        """All bytes that are held; there are none then. `total_samples`: the length to state in the header."""
        held, self._held, self._bytes = b"".join(self._held), [], 0
        return held if total_samples is None else with_length(self._kind, held, total_samples)
