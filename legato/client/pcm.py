"""Decode 16-bit PCM received as byte strings of any length, including odd ones.

Use one `PcmJoiner` per connection and call `end` or `reset` after each utterance.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from legato.errors import InputError


class PcmJoiner:
    """Converts the bytes of an utterance to int16 samples; keeps half a sample between calls."""

    def __init__(self) -> None:
        self._rest = b""

    def decode(self, data: bytes) -> npt.NDArray[np.int16]:
        """The samples that are complete after the next bytes."""
        data = self._rest + data
        complete = len(data) - len(data) % 2
        self._rest = data[complete:]
        return np.frombuffer(data[:complete], dtype="<i2").astype(np.int16)

    def end(self) -> None:
        """End the utterance. Raises `InputError` if half a sample is left, and discards it."""
        rest = self._rest
        self._rest = b""
        if rest:
            raise InputError("the utterance ended in the middle of a sample: a byte was lost in transit")

    def reset(self) -> None:
        """Discard half a sample of a cancelled utterance."""
        self._rest = b""
