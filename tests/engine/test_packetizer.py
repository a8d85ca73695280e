"""Packet sizes and decode windows."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from legato.engine.packetizer import WIDE_FRAMES, PacketPolicy, WindowMode, window_packets
from legato.errors import InputError


def test_default_packet_frames_are_one_two_four() -> None:
    assert [PacketPolicy().size(packet) for packet in range(5)] == [1, 2, 4, 4, 4]


@pytest.mark.parametrize("frames", [(), (0,), (1, -2), (257,)])
def test_invalid_packet_frames_are_refused(frames: tuple[int, ...]) -> None:
    with pytest.raises(InputError) as caught:
        PacketPolicy(frames)
    assert caught.value.field == "packet_frames"


MODES = st.lists(st.sampled_from([WindowMode.SINGLE, WindowMode.WIDE, WindowMode.WAIT_FOR_WIDE]), max_size=60)


@given(st.lists(st.integers(1, 9), min_size=1, max_size=4), MODES, st.integers(0, 3))
def test_each_frame_is_in_one_packet_and_only_the_last_is_short(
    sizes: list[int], modes: list[WindowMode], late: int
) -> None:
    """The window modes do not change the packet sizes."""
    policy = PacketPolicy(tuple(sizes))
    packets: list[int] = []
    available, total = late, late + len(modes)
    for mode in [*modes, *[WindowMode.WIDE] * total]:
        ended = total == sum(packets) + available
        window = window_packets(policy, packets=len(packets), available=available, ended=ended, mode=mode)
        assert len(window) <= 1 or sum(window) <= WIDE_FRAMES
        assert window or not ended or not available
        packets += window
        available = min(available - sum(window) + 1, total - sum(packets))
    assert sum(packets) == total
    assert packets[:-1] == [policy.size(index) for index in range(len(packets) - 1)]
    assert not packets or 1 <= packets[-1] <= policy.size(len(packets) - 1)


def test_incomplete_packet_waits_for_end_of_stream() -> None:
    policy = PacketPolicy((4,))
    assert window_packets(policy, packets=0, available=3, ended=False) == ()
    assert window_packets(policy, packets=0, available=3, ended=True) == (3,)


def test_flush_shortens_any_packet_but_the_first() -> None:
    policy, now = PacketPolicy((2, 4)), WindowMode.FLUSH
    assert window_packets(policy, packets=1, available=3, ended=False, mode=now) == (3,)
    assert window_packets(policy, packets=1, available=0, ended=False, mode=now) == ()
    assert window_packets(policy, packets=0, available=1, ended=False, mode=now) == ()


def test_wide_window_holds_several_packets() -> None:
    policy = PacketPolicy()

    def cut(mode: WindowMode, available: int, *, packets: int = 2, ended: bool = False) -> tuple[int, ...]:
        return window_packets(policy, packets=packets, available=available, ended=ended, mode=mode)

    assert cut(WindowMode.SINGLE, 40) == (4,)
    assert cut(WindowMode.WIDE, 40) == cut(WindowMode.WAIT_FOR_WIDE, 40) == (4, 4)
    assert cut(WindowMode.WIDE, 7) == (4,)
    assert cut(WindowMode.WAIT_FOR_WIDE, 7) == ()
    assert cut(WindowMode.WAIT_FOR_WIDE, 7, ended=True) == (4, 3)
    assert cut(WindowMode.WAIT_FOR_WIDE, 12, packets=1) == (2, 4)
    assert cut(WindowMode.WAIT_FOR_WIDE, 12, packets=0) == (1,)  # the first packet has a window of its own
    assert window_packets(PacketPolicy((40,)), packets=3, available=80, ended=False, mode=WindowMode.WAIT_FOR_WIDE) == (
        40,
    )
