"""Files that clients fetch with a second request, because their protocol answers with a URL.

A `FinishedFiles` belongs to one application and lives in memory. The id of a file cannot be guessed: knowing it is the
permission to fetch it.
"""

from __future__ import annotations

import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

KEPT_BYTES = 128 * 2**20
"""All files together; the oldest are dropped first. The latest file is kept, whatever its size."""
KEPT_S = 3600.0


@dataclass(frozen=True, slots=True)
class FinishedFile:
    """A file, its media type, and when it expires (seconds of the wall clock)."""

    data: bytes
    media_type: str
    expires_s: float


class FinishedFiles:
    """The files by name. Use it on the event loop only."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._files: OrderedDict[str, FinishedFile] = OrderedDict()

    def add(self, data: bytes, media_type: str, extension: str) -> tuple[str, FinishedFile]:
        """Keep a file; returns its name."""
        name = f"{secrets.token_hex(16)}.{extension}"
        file = FinishedFile(data, media_type, self._clock() + KEPT_S)
        self._files[name] = file
        self._drop_expired()
        while len(self._files) > 1 and sum(len(each.data) for each in self._files.values()) > KEPT_BYTES:
            self._files.popitem(last=False)
        return name, file

    def find(self, name: str) -> FinishedFile | None:
        """The file with this name; None if there is none, or not any more."""
        self._drop_expired()
        return self._files.get(name)

    def _drop_expired(self) -> None:
        now_s = self._clock()
        while self._files and next(iter(self._files.values())).expires_s <= now_s:
            self._files.popitem(last=False)
