"""How frames are cut into packets."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from legato.engine.framing import PacketPolicy, window_frames
from legato.errors import InputError


def test_the_default_ramp_is_one_two_four() -> None:
    assert [PacketPolicy().size(packet) for packet in range(5)] == [1, 2, 4, 4, 4]


@pytest.mark.parametrize("frames", [(), (0,), (1, -2), (257,)])
def test_a_nonsense_policy_is_refused(frames: tuple[int, ...]) -> None:
    with pytest.raises(InputError) as caught:
        PacketPolicy(frames)
    assert caught.value.field == "packet_frames"


@given(st.lists(st.integers(1, 9), min_size=1, max_size=4), st.integers(0, 60))
def test_every_frame_goes_into_one_packet_and_only_the_last_may_be_short(sizes: list[int], total: int) -> None:
    policy = PacketPolicy(tuple(sizes))
    packets: list[int] = []
    available = 0
    for _ in range(total):
        available += 1
        window = window_frames(policy, packets=len(packets), available=available, ended=False)
        if window:
            packets.append(window)
            available -= window
    while available:
        window = window_frames(policy, packets=len(packets), available=available, ended=True)
        packets.append(window)
        available -= window
    assert sum(packets) == total
    assert packets[:-1] == [policy.size(index) for index in range(len(packets) - 1)]
    assert not packets or 1 <= packets[-1] <= policy.size(len(packets) - 1)


def test_an_incomplete_packet_waits_until_the_stream_has_ended() -> None:
    policy = PacketPolicy((4,))
    assert window_frames(policy, packets=0, available=3, ended=False) == 0
    assert window_frames(policy, packets=0, available=3, ended=True) == 3
