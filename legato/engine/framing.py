"""How the frames of a stream are cut into windows, each of which becomes one packet. Pure arithmetic on counts.

Knows no codes and no codec: the samples do not depend on the cut, which is what `legato verify` shows.
"""

from __future__ import annotations

from dataclasses import dataclass

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


def window_frames(policy: PacketPolicy, *, packets: int, available: int, ended: bool, last_chance: bool = False) -> int:
    """Frames to decode now for a stream that has sent `packets` packets: a full one, at its end the rest, or 0.

    `last_chance`: the listener would run dry before the packet could fill, so what is there goes at once; but never the
    first packet, whose size is the client's choice.
    """
    wanted = policy.size(packets)
    if available >= wanted:
        return wanted
    return available if ended or (last_chance and packets) else 0
