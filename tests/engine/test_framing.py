"""How frames are cut into packets."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from legato.engine.framing import WIDE_FRAMES, Haste, PacketPolicy, window_packets
from legato.errors import InputError


def test_the_default_ramp_is_one_two_four() -> None:
    assert [PacketPolicy().size(packet) for packet in range(5)] == [1, 2, 4, 4, 4]


@pytest.mark.parametrize("frames", [(), (0,), (1, -2), (257,)])
def test_a_nonsense_policy_is_refused(frames: tuple[int, ...]) -> None:
    with pytest.raises(InputError) as caught:
        PacketPolicy(frames)
    assert caught.value.field == "packet_frames"


HASTES = st.lists(st.sampled_from([Haste.PLAIN, Haste.EASY, Haste.PATIENT]), max_size=60)


@given(st.lists(st.integers(1, 9), min_size=1, max_size=4), HASTES, st.integers(0, 3))
def test_every_frame_goes_into_one_packet_and_only_the_last_may_be_short(
    sizes: list[int], hastes: list[Haste], late: int
) -> None:
    """However windows are cut, packets are those that the client asked for."""
    policy = PacketPolicy(tuple(sizes))
    packets: list[int] = []
    available, total = late, late + len(hastes)
    for haste in [*hastes, *[Haste.EASY] * total]:
        ended = total == sum(packets) + available
        window = window_packets(policy, packets=len(packets), available=available, ended=ended, haste=haste)
        assert len(window) <= 1 or sum(window) <= WIDE_FRAMES
        assert window or not ended or not available
        packets += window
        available = min(available - sum(window) + 1, total - sum(packets))
    assert sum(packets) == total
    assert packets[:-1] == [policy.size(index) for index in range(len(packets) - 1)]
    assert not packets or 1 <= packets[-1] <= policy.size(len(packets) - 1)


def test_an_incomplete_packet_waits_until_the_stream_has_ended() -> None:
    policy = PacketPolicy((4,))
    assert window_packets(policy, packets=0, available=3, ended=False) == ()
    assert window_packets(policy, packets=0, available=3, ended=True) == (3,)


def test_a_packet_is_cut_short_when_it_is_the_last_chance_but_never_the_first() -> None:
    policy, now = PacketPolicy((2, 4)), Haste.LAST_CHANCE
    assert window_packets(policy, packets=1, available=3, ended=False, haste=now) == (3,)
    assert window_packets(policy, packets=1, available=0, ended=False, haste=now) == ()
    assert window_packets(policy, packets=0, available=1, ended=False, haste=now) == ()


def test_a_wide_window_holds_several_packets_and_is_waited_for_only_while_frames_keep_coming() -> None:
    policy = PacketPolicy()

    def cut(haste: Haste, available: int, *, packets: int = 2, ended: bool = False) -> tuple[int, ...]:
        return window_packets(policy, packets=packets, available=available, ended=ended, haste=haste)

    assert cut(Haste.PLAIN, 40) == (4,)
    assert cut(Haste.EASY, 40) == cut(Haste.PATIENT, 40) == (4, 4)
    assert cut(Haste.EASY, 7) == (4,)
    assert cut(Haste.PATIENT, 7) == ()
    assert cut(Haste.PATIENT, 7, ended=True) == (4, 3)
    assert cut(Haste.PATIENT, 12, packets=1) == (2, 4)
    assert cut(Haste.PATIENT, 12, packets=0) == (1,)  # the first packet goes alone and at once
    assert window_packets(PacketPolicy((40,)), packets=3, available=80, ended=False, haste=Haste.PATIENT) == (40,)
