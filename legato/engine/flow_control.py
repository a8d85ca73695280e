"""Flow control: how far a stream may generate ahead of its client. Pure values and arithmetic, no clock.

Each stream has one `FlowControl`; the client can replace it at any time.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from legato.errors import InputError


class FlowMode(Enum):
    """How the client uses the audio."""

    UNLIMITED = "unlimited"
    """The client takes audio as fast as it is generated, for example a download. The scheduler assumes that playback
    starts with the first packet."""
    PACED = "paced"
    """The client plays live and reports consumed frames. Generation runs at most `ahead_frames` ahead of it."""
    BACKGROUND = "background"
    """The client does not play live. The stream has the lowest priority and no limit on generated frames."""


@dataclass(frozen=True, slots=True)
class FlowControl:
    """Flow mode. `ahead_frames`: for PACED, maximum number of frames ahead of the client (25 frames are 2 s).

    A paced stream with `ahead_frames=0` is on hold: it is not admitted and generates no frames.
    """

    mode: FlowMode = FlowMode.UNLIMITED
    ahead_frames: int = 25

    def __post_init__(self) -> None:
        if self.ahead_frames < 0:
            raise InputError(f"ahead_frames must be 0 (on hold) or more, not {self.ahead_frames}", field="ahead_frames")

    def allows(self, generated: int, consumed: int, packet_frames: int) -> bool:
        """Whether another frame may be generated after `generated` frames, of which the client consumed `consumed`.

        Unless the stream is on hold, one packet of `packet_frames` is always allowed. Otherwise a packet larger than
        `ahead_frames` would never be complete, the client would have nothing to consume, and the stream would deadlock.
        """
        if self.mode is not FlowMode.PACED:
            return True
        return self.ahead_frames > 0 and generated < consumed + max(self.ahead_frames, packet_frames)


UNLIMITED = FlowControl(FlowMode.UNLIMITED)
BACKGROUND = FlowControl(FlowMode.BACKGROUND)


def paced(ahead_frames: int = 25) -> FlowControl:
    """Flow control for live playback, at most `ahead_frames` ahead."""
    return FlowControl(FlowMode.PACED, ahead_frames)
