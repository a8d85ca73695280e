"""How far ahead of its listener a stream may run, and how it ranks among others. Pure values and arithmetic.

A demand belongs to one stream and may be changed at any time. Knows no clock, no queue and no codes.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from legato.errors import InputError


class Pace(Enum):
    """What the client does with the sound."""

    UNLIMITED = "unlimited"
    """It takes all there is: a file, a plain download. It counts as listening from the first packet on."""
    PACED = "paced"
    """It plays live and says what it took: the stream stays a bounded number of frames ahead of that."""
    BACKGROUND = "background"
    """It does not play live: everything is made, but after those whose listener could run dry."""


@dataclass(frozen=True, slots=True)
class Demand:
    """The pace, and for a paced stream how many frames it may be ahead of what was taken: 25 frames are 2 s."""

    pace: Pace = Pace.UNLIMITED
    ahead_frames: int = 25

    def __post_init__(self) -> None:
        if self.ahead_frames < 1:
            raise InputError(f"ahead_frames must be at least 1, not {self.ahead_frames}", field="ahead_frames")

    def wants(self, generated: int, taken: int, packet: int) -> bool:
        """Whether frame number `generated` is wanted by now, `taken` frames being with the listener.

        Never less than the next `packet` is allowed, or it could not be filled and nobody would go on.
        """
        return self.pace is not Pace.PACED or generated < taken + max(self.ahead_frames, packet)


UNLIMITED = Demand(Pace.UNLIMITED)
BACKGROUND = Demand(Pace.BACKGROUND)


def paced(ahead_frames: int = 25) -> Demand:
    """A live listener's demand."""
    return Demand(Pace.PACED, ahead_frames)
