"""How far streams run ahead, who goes first, when packets are late: a scripted talker under a fake clock."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from legato.engine.decode import Window
from legato.engine.demand import BACKGROUND, UNLIMITED, Demand, Pace, paced
from legato.engine.framing import PacketPolicy, window_packets
from legato.engine.scheduler import EASY_S, HURRY_S, Capacity, SequenceView, plan_turn
from legato.engine.sequence import SequenceState
from legato.engine.stats import Mark, PoolUse, StreamTiming
from legato.errors import InputError
from legato.flow import FinishReason, Frame, StreamId
from tests.engine.harness import Harness
from tests.engine.test_loop import frame_of, harness
from tests.engine.test_scheduler import ROOM, view

FRAME_S = 0.001
"""What a frame of the tiny codec lasts."""
NO_POOL = PoolUse(0, 0)


# --- demand and windows, pure ----------------------------------------------------------------------------------------


@given(st.integers(1, 40), st.lists(st.integers(1, 8), min_size=1, max_size=3), st.integers(1, 120))
def test_a_paced_stream_never_stalls_and_never_exceeds_its_bound(ahead: int, sizes: list[int], total: int) -> None:
    demand, policy = paced(ahead), PacketPolicy(tuple(sizes))
    generated = taken = sent = packets = 0
    while generated < total:
        if demand.wants(generated, taken, policy.size(packets)):
            generated += 1
            assert generated - taken <= max(ahead, max(sizes))
            full = window_packets(policy, packets=packets, available=generated - sent, ended=False)
            sent, packets = sent + sum(full), packets + len(full)
        else:
            assert sent > taken, "nobody could go on"
            taken = sent
    assert Demand(Pace.BACKGROUND).wants(10**6, 0, 1)


def test_a_bound_of_nothing_is_refused() -> None:
    with pytest.raises(InputError, match="ahead_frames"):
        paced(0)


# --- who goes first --------------------------------------------------------------------------------------------------


def running(number: int, slack_s: float) -> SequenceView:
    return replace(view(number, state=SequenceState.RUNNING, can_step=True), slack_s=slack_s)


def steps(*slacks_s: float, rows: int = 64) -> tuple[int, ...]:
    views = [running(number, slack_s) for number, slack_s in enumerate(slacks_s)]
    seated = frozenset(StreamId(number) for number in range(len(views)))
    return plan_turn(views, seated, replace(ROOM, rows=rows)).step


def test_when_not_all_fit_a_turn_those_nearest_to_running_dry_go_first() -> None:
    assert steps(0.9, 0.3, 0.6, rows=2) == (1, 2)
    assert steps(0.9, 0.3, 0.6) == (0, 1, 2)


def test_while_one_is_in_a_hurry_those_with_plenty_in_hand_and_the_background_sit_out() -> None:
    assert steps(HURRY_S / 2, EASY_S * 2, EASY_S / 2, float("inf")) == (0, 2)
    assert steps(-1.0, float("inf")) == (0,)
    assert steps(EASY_S * 2, float("inf")) == (0, 1)  # nobody is in a hurry


@given(st.lists(st.one_of(st.floats(-5, 5), st.just(float("inf"))), min_size=1, max_size=9), st.integers(1, 4))
def test_somebody_always_steps(slacks_s: list[float], rows: int) -> None:
    chosen = steps(*slacks_s, rows=rows)
    assert 1 <= len(chosen) <= rows
    assert min(range(len(slacks_s)), key=lambda number: slacks_s[number]) in chosen


def test_a_stream_between_two_segments_finds_its_slot_free() -> None:
    speaking = view(1, stream=1, state=SequenceState.RUNNING, can_step=True)
    behind = view(2, stream=1, head=False)
    seated = frozenset({StreamId(1), StreamId(7)})  # 7 waits for the text of its next segment
    assert plan_turn([speaking, behind], seated, Capacity(1, 0, 512, 512)).admit == ()
    assert plan_turn([speaking, behind], seated, Capacity(2, 0, 512, 512)).admit == (2,)


# --- in the loop -----------------------------------------------------------------------------------------------------


def test_generation_runs_ahead_of_a_slow_listener_into_a_bounded_buffer() -> None:
    """R38: the whole takes as long as playing, not as long as making and playing; and no packet is late."""
    h = harness({0: 40}, tick_s=FRAME_S / 2)
    stream, heard = h.submit("a text that is long enough for it " * 2, packets=(1, 2, 4), demand=paced(12))
    taken, played_until_s, most = 0, 0.0, 0
    while not (heard.packets and heard.packets[-1].last):
        h.turn()
        most = max(most, h.streams[0].frames - taken)
        if sum(packet.frames for packet in heard.packets) > taken and h.now_s >= played_until_s:
            packet = next(p for p in heard.packets if p.first_sample == taken * 24)
            taken += packet.frames
            played_until_s = h.now_s + packet.frames * FRAME_S
            h.taken(stream, taken)
    timing = h.streams[0].timing
    assert most == 12
    assert timing.underruns == 0
    h.assert_balanced()


@pytest.mark.parametrize("streams", [1, 8, 32])
def test_underruns_are_counted_and_the_default_ramp_has_none_at_the_rated_load(streams: int) -> None:
    """R39: a turn of this machine takes longer the more streams there are; up to 8 it keeps up with them."""
    late = {}
    for packets in ((1, 2, 4), (12,)):
        h = harness(
            dict.fromkeys(range(streams), 12), streams=streams, tick_s=0.06 * streams * FRAME_S, prefill_positions=2000
        )
        for seed in range(streams):
            h.submit("a text for all", seed=seed, packets=packets)
        h.run()
        stats = h.roster.stats.snapshot(streams_open=0, talker_slots=NO_POOL, codec_slots=NO_POOL)
        late[packets] = (stats.underruns, stats.underrun_s)
        assert stats.packet_gap_s.count == sum(len(stream.timing.packet_s) - 1 for stream in h.streams)
    keeps_up = streams <= 8
    assert (late[1, 2, 4] == (0, 0.0)) is keeps_up
    assert keeps_up or late[1, 2, 4][0] >= streams
    assert late[(12,)] == (0, 0.0)  # the ramp is the caller's choice: one large packet starts later and has no gap


def test_waiting_for_the_clients_own_text_or_for_a_listener_who_pauses_is_no_underrun() -> None:
    timing = StreamTiming()
    timing.packet(1.0, 0.1)
    timing.text_wait_began(1.0)
    timing.text_wait_ended(5.0)
    timing.packet(5.1, 0.1)
    timing.packet(9.0, 0.1, hungry=False)
    assert timing.underruns == 0
    timing.packet(10.0, 0.1)
    assert timing.underruns == 1
    assert timing.underrun_s == pytest.approx(10.0 - 9.1)


def test_a_live_listener_gets_a_short_packet_rather_than_a_gap() -> None:
    late, sizes = {}, {}
    for adaptive in (False, True):
        h = harness({0: 24}, tick_s=0.7 * FRAME_S, adaptive=adaptive)
        stream, heard = h.submit("a text that is long enough for it", demand=paced(100))
        while h.turn():
            h.taken(stream, heard.frames)
        late[adaptive] = h.streams[0].timing.underruns
        sizes[adaptive] = [packet.frames for packet in heard.packets]
    assert late[False] > 0
    assert late[True] == 0
    assert sizes[False][:4] == [1, 2, 4, 4]
    assert sum(sizes[True]) == sum(sizes[False]) == 24
    h = harness({0: 24}, tick_s=0.7 * FRAME_S, adaptive=True)
    _, heard = h.submit("a text that is long enough for it", demand=UNLIMITED)
    h.run()
    assert [packet.frames for packet in heard.packets] == sizes[False]  # a file keeps its cut


def test_frames_are_not_held_back_from_a_live_listener_while_text_is_awaited() -> None:
    h = harness({0: 9}, adaptive=True)
    _, heard = h.submit("abcd", ended=False, packets=(1, 8), demand=paced(100))
    h.run()
    assert [packet.frames for packet in heard.packets] == [1, 3]


def test_a_background_stream_yields_to_a_live_one_and_is_served_all_the_same() -> None:
    h = harness({0: 20, 1: 10}, tick_s=FRAME_S)
    _, background = h.submit("a text that is long enough", seed=0, demand=BACKGROUND)
    for _ in range(4):
        h.turn()
    before = h.streams[0].frames
    _, live = h.submit("a text that is long enough", seed=1)
    while not (live.packets and live.packets[-1].last):
        h.turn()
    assert h.streams[0].frames - before <= 2
    h.run()
    assert background.frames == 20
    h.assert_balanced()


# --- cancel, marks, batches ------------------------------------------------------------------------------------------


def test_a_cancel_in_the_middle_of_a_turn_costs_at_most_that_step_and_no_decode() -> None:
    """R29: set in the middle of an 8-frame packet."""
    decoded: list[int] = []

    def script(seed: int, number: int) -> Frame | FinishReason:
        if number == 3:
            h.cancel(stream)
        return frame_of(seed, number)

    h = Harness(script)
    decode = h.stage.decode

    def counted(windows: list[Window]) -> object:
        decoded.append(len(windows))
        return decode(windows)

    h.stage.decode = counted  # type: ignore[method-assign,assignment]
    stream, heard = h.submit("a text that is long enough", packets=(4,))
    h.run()
    assert h.runner.frames_drawn == 4  # the one that was under way, and no other
    assert not decoded  # the packet had become full in that very turn
    assert heard.reason is FinishReason.CANCELLED
    h.assert_balanced()


def test_the_first_packet_is_said_to_be_there_when_its_samples_are_on_the_host() -> None:
    """R40: a codec that completes 200 ms late."""
    h = harness({0: 5})
    decode = h.stage.decode

    def late(windows: list[Window]) -> object:
        samples = decode(windows)
        h.now_s += 0.2
        return samples

    h.stage.decode = late  # type: ignore[method-assign,assignment]
    h.submit("some text")
    h.run()
    timing = h.streams[0].timing
    assert timing.stages_s()["codec"] >= 0.2
    assert timing.first_packet_s >= 0.2
    assert timing.marks[Mark.FIRST_PACKET] - timing.marks[Mark.FIRST_FRAME] >= 0.2


@pytest.mark.parametrize("company", [1, 4, 16])
def test_the_codec_is_called_once_a_turn_however_many_streams_there_are(company: int) -> None:
    """R61."""
    h = harness(dict.fromkeys(range(company), 6), streams=company, prefill_positions=400)
    heard = [h.submit("some text", seed=seed)[1] for seed in range(company)]
    h.run()
    rows = h.roster.stats.snapshot(streams_open=0, talker_slots=NO_POOL, codec_slots=NO_POOL).rows
    assert rows["codec"].mean == rows["talker"].mean == company
    assert [each.frames for each in heard] == [6] * company


def test_first_packets_come_later_by_far_less_than_the_load_grows() -> None:
    """R61: a codec call costs 1 ms and a tenth of that for each row, in the fake clock."""
    late_s = {}
    for company in (1, 2, 4, 8, 16):
        h = harness(dict.fromkeys(range(company), 6), streams=company, prefill_positions=400)
        decode = h.stage.decode

        def slow(windows: list[Window], h: Harness = h, decode: Callable[..., object] = decode) -> object:
            h.now_s += 0.001 + 0.0001 * len(windows)
            return decode(windows)

        h.stage.decode = slow  # type: ignore[method-assign,assignment]
        for seed in range(company):
            h.submit("some text", seed=seed)
        h.run()
        late_s[company] = max(stream.timing.first_packet_s for stream in h.streams)
    assert late_s[16] < 2 * late_s[1]
    assert list(late_s.values()) == sorted(late_s.values())
