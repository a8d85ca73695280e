"""Packet sizes and decode windows: how the frames of a stream are grouped. Pure arithmetic on counts.

A window is the input of one codec call; a packet is what the client receives. Packet sizes follow the client's policy.
A window holds one packet, or several if only one stream is active and it has enough buffered audio, because longer
windows cost less per frame. The grouping does not change the samples; `legato verify` checks this.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from legato.errors import InputError
from legato.types import DEFAULT_PACKET_FRAMES


@dataclass(frozen=True, slots=True)
class PacketPolicy:
    """Frames of the first, second, ... packet. The last number applies to all later packets.

    `gapless`: `frames` are the smallest first packet and the largest later ones. The engine chooses sizes in between,
    so that a listener who starts at the first packet hears no gap (`pacing`).
    """

    frames: tuple[int, ...] = DEFAULT_PACKET_FRAMES
    gapless: bool = False

    def __post_init__(self) -> None:
        if not self.frames or any(not 1 <= count <= 256 for count in self.frames):
            raise InputError(
                f"packet_frames must be one or more numbers between 1 and 256, such as 1,2,4, not {self.frames}",
                field="packet_frames",
            )

    def size(self, packet: int) -> int:
        """Frames of packet number `packet`, counted from 0."""
        return self.frames[min(packet, len(self.frames) - 1)]


WIDE_FRAMES = 8
"""Maximum frames of a window with several packets: cheaper per frame, and short enough if another stream arrives."""


class WindowMode(Enum):
    """How the next window of a stream is formed."""

    SINGLE = "single"
    """One packet, as soon as it is full."""
    FLUSH = "flush"
    """All available frames immediately, as a shorter packet, because waiting would cause an underrun or is useless."""
    WIDE = "wide"
    """All full packets that fit in a wide window."""
    WAIT_FOR_WIDE = "wait for wide"
    """As WIDE, but wait until a wide window is full, because more frames are coming."""


def window_packets(
    policy: PacketPolicy,
    *,
    packets: int,
    available: int,
    ended: bool,
    mode: WindowMode = WindowMode.SINGLE,
    first_frames: int = 0,
) -> tuple[int, ...]:
    """Frames of each packet in the next window, after `packets` packets were sent; empty if frames are still missing.

    When the stream has `ended`, the last packet takes the remaining frames. The first packet always has its full size
    and a window of its own, because the client chose that size for latency. `first_frames`: a larger size of the first
    packet, for a gapless policy.
    """
    first = max(policy.size(packets), 0 if packets else first_frames)
    if available < first:
        short = bool(available) and (ended or (mode is WindowMode.FLUSH and packets > 0))
        return (available,) if short else ()
    sizes, total = [first], first
    if packets and mode in (WindowMode.WIDE, WindowMode.WAIT_FOR_WIDE):
        while total + (size := policy.size(packets + len(sizes))) <= WIDE_FRAMES:
            rest = available - total
            if rest < size and not (ended and rest):
                # The next packet of the window is not full, and more frames may be generated.
                return () if mode is WindowMode.WAIT_FOR_WIDE and not ended else tuple(sizes)
            sizes.append(min(size, rest))
            total += sizes[-1]
    return tuple(sizes)
