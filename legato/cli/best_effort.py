"""Best-effort standard error: messages that cannot be written are dropped instead of raising an error.

A full disk, a closed pipe or a closed terminal must not end a synthesis or a server. `install` wraps `sys.stderr` for
the rest of the process, so it covers messages, progress lines, the log, and tracebacks.
"""

from __future__ import annotations

import io
import os
import sys
from typing import TextIO


class BestEffortStream(io.TextIOBase):
    """Writes to another text stream until that fails; from then on, everything is dropped."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._broken = False

    @property
    def encoding(self) -> str:  # type: ignore[override]  # TextIOBase declares an attribute
        return self._stream.encoding

    @property
    def errors(self) -> str | None:  # type: ignore[override]  # TextIOBase declares an attribute
        return self._stream.errors

    @property
    def buffer(self) -> object:
        """The underlying binary stream, for libraries that look for it."""
        return self._stream.buffer

    def writable(self) -> bool:
        return True

    def isatty(self) -> bool:
        return not self._broken and self._stream.isatty()

    def fileno(self) -> int:
        return self._stream.fileno()

    def write(self, text: str, /) -> int:
        """Write and flush, so that a failure appears here and not at the exit of the interpreter."""
        if not self._broken:
            try:
                self._stream.write(text)
                self._stream.flush()
            except (OSError, ValueError):  # ValueError: the stream is closed
                self._give_up()
        return len(text)

    def flush(self) -> None:
        if not self._broken:
            try:
                self._stream.flush()
            except (OSError, ValueError):
                self._give_up()

    def _give_up(self) -> None:
        """Redirect the file to the null device, so that flushing buffered text at exit does not fail either."""
        self._broken = True
        try:
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, self._stream.fileno())
            os.close(null)
        except (OSError, ValueError):  # no file behind the stream
            return


def install() -> None:
    """Replace `sys.stderr`. Without one (pythonw, a daemon), messages are dropped from the start."""
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115  open until the process ends
    if not isinstance(sys.stderr, BestEffortStream):
        sys.stderr = BestEffortStream(sys.stderr)
