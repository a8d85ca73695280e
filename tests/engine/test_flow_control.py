"""Flow control, priorities and underruns: a scripted talker with a fake clock."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from legato.engine.codec_runner import Window
from legato.engine.flow_control import BACKGROUND, UNLIMITED, FlowControl, FlowMode, paced
from legato.engine.packetizer import PacketPolicy, window_packets
from legato.engine.scheduler import AMPLE_SLACK_S, URGENT_SLACK_S, Capacity, SequenceView, SlotHolder, plan_step
from legato.engine.sequence import SequenceState
from legato.engine.stats import Mark, PoolUse, StreamTiming
from legato.errors import InputError
from legato.types import FinishReason, Frame, StreamId
from tests.engine.harness import Harness
from tests.engine.test_core import frame_of, harness
from tests.engine.test_scheduler import CAPACITY, view

FRAME_S = 0.001
"""Duration of a frame of the tiny codec."""
NO_POOL = PoolUse(0, 0)


# --- flow control and windows, pure ----------------------------------------------------------------------------------


@given(st.integers(1, 40), st.lists(st.integers(1, 8), min_size=1, max_size=3), st.integers(1, 120))
def test_paced_stream_never_deadlocks_or_exceeds_its_limit(ahead: int, sizes: list[int], total: int) -> None:
    flow_control, policy = paced(ahead), PacketPolicy(tuple(sizes))
    generated = consumed = sent = packets = 0
    while generated < total:
        if flow_control.allows(generated, consumed, policy.size(packets)):
            generated += 1
            assert generated - consumed <= max(ahead, max(sizes))
            full = window_packets(policy, packets=packets, available=generated - sent, ended=False)
            sent, packets = sent + sum(full), packets + len(full)
        else:
            assert sent > consumed, "deadlock"
            consumed = sent
    assert FlowControl(FlowMode.BACKGROUND).allows(10**6, 0, 1)


def test_negative_ahead_frames_is_refused() -> None:
    with pytest.raises(InputError, match="ahead_frames"):
        paced(-1)


def test_stream_on_hold_takes_no_slot_and_starts_when_released() -> None:
    """With one slot, a stream behind a stream on hold is admitted first; the other starts once released."""
    h = harness({1: 5, 2: 5}, streams=1)
    held, first = h.submit("a text", seed=1, flow_control=paced(0))
    _, second = h.submit("a text", seed=2)
    h.run()
    assert (first.packets, second.frames) == ([], 5)
    h.set_flow_control(held, UNLIMITED)
    h.run()
    assert first.frames == 5
    h.assert_all_slots_free()


# --- priority --------------------------------------------------------------------------------------------------------


def running(number: int, slack_s: float) -> SequenceView:
    return replace(view(number, state=SequenceState.RUNNING, can_step=True), slack_s=slack_s)


def steps(*slacks_s: float, rows: int = 64) -> tuple[int, ...]:
    views = [running(number, slack_s) for number, slack_s in enumerate(slacks_s)]
    holders = [SlotHolder(StreamId(number)) for number in range(len(views))]
    return plan_step(views, holders, replace(CAPACITY, max_batch_size=rows)).step


def test_streams_with_least_slack_step_first() -> None:
    assert steps(0.9, 0.3, 0.6, rows=2) == (1, 2)
    assert steps(0.9, 0.3, 0.6) == (0, 1, 2)


def test_urgent_stream_makes_comfortable_and_background_streams_skip() -> None:
    assert steps(URGENT_SLACK_S / 2, AMPLE_SLACK_S * 2, AMPLE_SLACK_S / 2, float("inf")) == (0, 2)
    assert steps(-1.0, float("inf")) == (0,)
    assert steps(AMPLE_SLACK_S * 2, float("inf")) == (0, 1)  # no stream is urgent


@given(st.lists(st.one_of(st.floats(-5, 5), st.just(float("inf"))), min_size=1, max_size=9), st.integers(1, 4))
def test_stream_with_least_slack_always_steps(slacks_s: list[float], rows: int) -> None:
    chosen = steps(*slacks_s, rows=rows)
    assert 1 <= len(chosen) <= rows
    assert min(range(len(slacks_s)), key=lambda number: slacks_s[number]) in chosen


def test_slot_is_reserved_for_stream_between_two_segments() -> None:
    speaking = view(1, stream=1, state=SequenceState.RUNNING, can_step=True)
    behind = view(2, stream=1, head=False)
    holders = [SlotHolder(StreamId(1)), SlotHolder(StreamId(7))]  # stream 7 waits for the text of its next segment
    assert plan_step([speaking, behind], holders, Capacity(1, 0, 512, 512)).admit == ()
    assert plan_step([speaking, behind], holders, Capacity(2, 0, 512, 512)).admit == (2,)


# --- engine steps ----------------------------------------------------------------------------------------------------


def test_generation_runs_ahead_of_playback_into_a_bounded_buffer() -> None:
    """R38: generation overlaps with playback, stays within `ahead_frames`, and no packet is late."""
    h = harness({0: 40}, tick_s=FRAME_S / 2)
    stream, received = h.submit("a text that is long enough for it " * 2, packets=(1, 2, 4), flow_control=paced(12))
    consumed, played_until_s, most = 0, 0.0, 0
    while not (received.packets and received.packets[-1].last):
        h.step()
        most = max(most, h.streams[0].frames - consumed)
        if sum(packet.frames for packet in received.packets) > consumed and h.now_s >= played_until_s:
            packet = next(p for p in received.packets if p.first_sample == consumed * 24)
            consumed += packet.frames
            played_until_s = h.now_s + packet.frames * FRAME_S
            h.report_consumed(stream, consumed)
    timing = h.streams[0].timing
    assert most == 12
    assert timing.underruns == 0
    h.assert_all_slots_free()


@pytest.mark.parametrize("streams", [1, 8, 32])
def test_default_packets_have_no_underruns_at_rated_load(streams: int) -> None:
    """R39: a step of the simulated machine gets longer with each stream; it keeps up with 8 streams."""
    late = {}
    for packets in ((1, 2, 4), (12,)):
        h = harness(
            dict.fromkeys(range(streams), 12), streams=streams, tick_s=0.06 * streams * FRAME_S, prefill_positions=2000
        )
        for seed in range(streams):
            h.submit("a text for all", seed=seed, packets=packets)
        h.run()
        stats = h.registry.stats.snapshot(streams_open=0, streams_parked=0, talker_slots=NO_POOL, codec_slots=NO_POOL)
        late[packets] = (stats.underruns, stats.underrun_s)
        assert stats.packet_gap_s.count == sum(len(stream.timing.packet_s) - 1 for stream in h.streams)
    keeps_up = streams <= 8
    assert (late[1, 2, 4] == (0, 0.0)) is keeps_up
    assert keeps_up or late[1, 2, 4][0] >= streams
    assert late[(12,)] == (0, 0.0)  # one large packet starts later and has no gap


def test_wait_for_text_or_paused_client_is_no_underrun() -> None:
    timing = StreamTiming()
    timing.packet(1.0, 0.1)
    timing.text_wait_began(1.0)
    timing.text_wait_ended(5.0)
    timing.packet(5.1, 0.1)
    timing.packet(9.0, 0.1, client_waiting=False)
    assert timing.underruns == 0
    timing.packet(10.0, 0.1)
    assert timing.underruns == 1
    assert timing.underrun_s == pytest.approx(10.0 - 9.1)


def test_paced_stream_gets_short_packet_instead_of_underrun() -> None:
    late, sizes = {}, {}
    for adaptive in (False, True):
        h = harness({0: 24}, tick_s=0.7 * FRAME_S, adaptive=adaptive)
        stream, received = h.submit("a text that is long enough for it", flow_control=paced(100))
        while h.step():
            h.report_consumed(stream, received.frames)
        late[adaptive] = h.streams[0].timing.underruns
        sizes[adaptive] = [packet.frames for packet in received.packets]
    assert late[False] > 0
    assert late[True] == 0
    assert sizes[False][:4] == [1, 2, 4, 4]
    assert sum(sizes[True]) == sum(sizes[False]) == 24
    h = harness({0: 24}, tick_s=0.7 * FRAME_S, adaptive=True)
    _, received = h.submit("a text that is long enough for it", flow_control=UNLIMITED)
    h.run()
    assert [packet.frames for packet in received.packets] == sizes[False]  # without live playback the packet sizes stay


def test_paced_stream_is_flushed_while_waiting_for_text() -> None:
    h = harness({0: 9}, adaptive=True)
    _, received = h.submit("abcd", ended=False, packets=(1, 8), flow_control=paced(100))
    h.run()
    assert [packet.frames for packet in received.packets] == [1, 3]


def test_background_stream_yields_to_live_stream_and_completes() -> None:
    h = harness({0: 20, 1: 10}, tick_s=FRAME_S)
    _, background = h.submit("a text that is long enough", seed=0, flow_control=BACKGROUND)
    for _ in range(4):
        h.step()
    before = h.streams[0].frames
    _, live = h.submit("a text that is long enough", seed=1)
    while not (live.packets and live.packets[-1].last):
        h.step()
    assert h.streams[0].frames - before <= 2
    h.run()
    assert background.frames == 20
    h.assert_all_slots_free()


# --- cancel, marks, batches ------------------------------------------------------------------------------------------


def test_cancel_during_a_step_prevents_decode_and_later_steps() -> None:
    """R29: set in the middle of an 8-frame packet."""
    decoded: list[int] = []

    def script(seed: int, number: int) -> Frame | FinishReason:
        if number == 3:
            h.cancel(stream)
        return frame_of(seed, number)

    h = Harness(script)
    decode = h.codec_runner.decode

    def counted(windows: list[Window]) -> object:
        decoded.append(len(windows))
        return decode(windows)

    h.codec_runner.decode = counted  # type: ignore[method-assign,assignment]
    stream, received = h.submit("a text that is long enough", packets=(4,))
    h.run()
    assert h.runner.frames_sampled == 4  # the frame of the current step only
    assert not decoded  # the packet became full in that step
    assert received.reason is FinishReason.CANCELLED
    h.assert_all_slots_free()


def test_first_packet_is_marked_when_its_samples_are_on_the_host() -> None:
    """R40: a codec that completes 200 ms late."""
    h = harness({0: 5})
    decode = h.codec_runner.decode

    def late(windows: list[Window]) -> object:
        samples = decode(windows)
        h.now_s += 0.2
        return samples

    h.codec_runner.decode = late  # type: ignore[method-assign,assignment]
    h.submit("some text")
    h.run()
    timing = h.streams[0].timing
    assert timing.stages_s()["codec"] >= 0.2
    assert timing.first_packet_s >= 0.2
    assert timing.marks[Mark.FIRST_PACKET] - timing.marks[Mark.FIRST_FRAME] >= 0.2


@pytest.mark.parametrize("streams", [1, 4, 16])
def test_codec_is_called_once_per_step_for_all_streams(streams: int) -> None:
    """R61."""
    h = harness(dict.fromkeys(range(streams), 6), streams=streams, prefill_positions=400)
    received = [h.submit("some text", seed=seed)[1] for seed in range(streams)]
    h.run()
    rows = h.registry.stats.snapshot(streams_open=0, streams_parked=0, talker_slots=NO_POOL, codec_slots=NO_POOL).rows
    assert rows["codec"].mean == rows["talker"].mean == streams
    assert [each.frames for each in received] == [6] * streams


def test_ttfa_grows_slower_than_load() -> None:
    """R61: a codec call costs 1 ms and a tenth of that for each row, in the fake clock."""
    late_s = {}
    for streams in (1, 2, 4, 8, 16):
        h = harness(dict.fromkeys(range(streams), 6), streams=streams, prefill_positions=400)
        decode = h.codec_runner.decode

        def slow(windows: list[Window], h: Harness = h, decode: Callable[..., object] = decode) -> object:
            h.now_s += 0.001 + 0.0001 * len(windows)
            return decode(windows)

        h.codec_runner.decode = slow  # type: ignore[method-assign,assignment]
        for seed in range(streams):
            h.submit("some text", seed=seed)
        h.run()
        late_s[streams] = max(stream.timing.first_packet_s for stream in h.streams)
    assert late_s[16] < 2 * late_s[1]
    assert list(late_s.values()) == sorted(late_s.values())
