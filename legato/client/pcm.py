"""Bytes of 16 bit PCM as they come from a network, in pieces of any length, back to samples.

A `PcmJoiner` owns the odd byte between two pieces of one utterance, and never carries it into the next. Knows no
socket.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from legato.errors import InputError


class PcmJoiner:
    """Pieces of one utterance in, int16 samples out."""

    def __init__(self) -> None:
        self._odd = b""

    def take(self, piece: bytes) -> npt.NDArray[np.int16]:
        """The samples that are whole by now."""
        data = self._odd + piece
        whole = len(data) - len(data) % 2
        self._odd = data[whole:]
        return np.frombuffer(data[:whole], dtype="<i2").astype(np.int16)

    def end(self) -> None:
        """The utterance is over; half a sample left is an `InputError`, and forgotten."""
        odd, self._odd = self._odd, b""
        if odd:
            raise InputError("the utterance ended in the middle of a sample: a byte was lost on the way")

    def reset(self) -> None:
        """The utterance was cut off: what is left of it is nothing."""
        self._odd = b""
