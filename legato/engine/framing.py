"""How the frames of a stream are cut into windows, and windows into packets. Pure arithmetic on counts.

A window is what the codec decodes in one call, a packet is what the client gets. Packets are as the client asked for
them; a window holds one, or several for a stream that is alone, since long windows cost less a frame.

Knows no codes and no codec: the samples do not depend on the cut, which is what `legato verify` shows.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from legato.errors import InputError


@dataclass(frozen=True, slots=True)
class PacketPolicy:
    """Frames of the first, second, ... packet; the last number holds for all further ones. (1, 2, 4) is the default."""

    frames: tuple[int, ...] = (1, 2, 4)

    def __post_init__(self) -> None:
        if not self.frames or any(not 1 <= count <= 256 for count in self.frames):
            raise InputError(
                f"packet frames must be one or more numbers between 1 and 256, like 1,2,4, not {self.frames}",
                field="packet_frames",
            )

    def size(self, packet: int) -> int:
        """Frames of packet number `packet`, counted from 0."""
        return self.frames[min(packet, len(self.frames) - 1)]


WIDE_FRAMES = 8
"""The most frames of a window that holds several packets: cheaper a frame, and soon over if somebody comes."""


class Haste(Enum):
    """How soon a window is wanted."""

    PLAIN = "plain"
    """One packet as soon as it is full."""
    LAST_CHANCE = "last chance"
    """The listener would run dry before the packet could fill: what is there goes at once."""
    EASY = "easy"
    """Its listener is far ahead and alone: all packets that are full and fit a wide window go together."""
    PATIENT = "patient"
    """As easy, and frames keep coming: worth waiting until a wide window is full."""


def window_packets(
    policy: PacketPolicy, *, packets: int, available: int, ended: bool, haste: Haste = Haste.PLAIN
) -> tuple[int, ...]:
    """The frames of each packet in the window to be decoded now, for a stream that has sent `packets` packets.

    One packet, or several where there is no hurry; nothing while frames are lacking. At the end the last packet is
    the rest. The first packet goes alone and is never cut short: its size is the client's choice.
    """
    first = policy.size(packets)
    if available < first:
        short = bool(available) and (ended or (haste is Haste.LAST_CHANCE and packets > 0))
        return (available,) if short else ()
    sizes, total = [first], first
    if packets and haste in (Haste.EASY, Haste.PATIENT):
        while total + (size := policy.size(packets + len(sizes))) <= WIDE_FRAMES:
            rest = available - total
            if rest < size and not (ended and rest):
                return () if haste is Haste.PATIENT and not ended else tuple(sizes)
            sizes.append(min(size, rest))
            total += sizes[-1]
    return tuple(sizes)
