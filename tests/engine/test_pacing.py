"""Packet sizes for playback without a gap, and gapless TTFA, against a simulation of engine and listener."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from legato.bench.playback import simulate_playback
from legato.engine.pacing import (
    MAX_FIRST_FRAMES,
    StepTimer,
    StepTimes,
    first_packet_frames,
    must_send,
    start_delay_s,
)
from legato.engine.packetizer import PacketPolicy, WindowMode, window_packets
from legato.engine.stats import Mark, StreamTiming

FRAME_S = 0.08
RATE_HZ = 24_000
seconds = st.floats(0.0005, 0.12)
times = st.builds(StepTimes, step_s=seconds, call_s=st.floats(0.0, 0.06), frame_s=st.floats(0.0005, 0.06))


def play(policy: PacketPolicy, times: StepTimes, frames: int, *, jitter: random.Random | None = None) -> StreamTiming:
    """One stream in an engine whose steps take `times`, with up to 5 % of jitter per operation."""
    now_s, available, generated, packets = 0.0, 0, 0, 0
    timing = StreamTiming()
    timing.mark(Mark.RECEIVED, 0.0)

    def noise() -> float:
        return jitter.uniform(0.97, 1.05) if jitter is not None else 1.0

    first = (first_packet_frames(times) or 0) if policy.gapless else 0
    while generated < frames or available:
        if generated < frames:
            now_s += times.step_s * noise()
            generated, available = generated + 1, available + 1
        flush = policy.gapless and packets > 0 and must_send(times, available=available, slack_s=timing.slack_s(now_s))
        window = window_packets(
            policy,
            packets=packets,
            available=available,
            ended=generated == frames,
            mode=WindowMode.FLUSH if flush else WindowMode.SINGLE,
            first_frames=first,
        )
        if window:
            now_s += times.window_s(sum(window)) * noise()
            timing.packet(now_s, sum(window) * FRAME_S)
            packets, available = packets + 1, available - sum(window)
    return timing


@given(times, st.integers(1, 120), st.integers())
@settings(max_examples=300)
def test_gapless_policy_plays_without_a_gap_whenever_it_finds_a_first_packet(
    times: StepTimes, frames: int, seed: int
) -> None:
    timing = play(PacketPolicy(gapless=True), times, frames, jitter=random.Random(seed))
    if first_packet_frames(times) is not None:
        assert timing.underruns == 0, (first_packet_frames(times), timing.underrun_s)
        assert timing.gapless_first_audio_s == pytest.approx(timing.first_packet_s)


def test_fixed_small_packets_have_gaps_at_the_same_times() -> None:
    """The control: a 0.6B model at an RTF of 0.7, packets of 1, 2, 4 frames."""
    times = StepTimes(step_s=0.040, call_s=0.030, frame_s=0.009)
    assert 0.65 < times.real_time_factor() < 0.75
    fixed, gapless = play(PacketPolicy(), times, 100), play(PacketPolicy(gapless=True), times, 100)
    assert fixed.underruns > 0
    assert gapless.underruns == 0
    assert fixed.first_packet_s < gapless.first_packet_s <= 0.130
    # A listener who waits for the gapless TTFA hears no gap with the fixed packets either.
    assert fixed.gapless_first_audio_s >= gapless.gapless_first_audio_s


@pytest.mark.parametrize(
    ("times", "streams", "frames"),
    [
        (StepTimes(0.004, 0.003, 0.001), 1, 1),  # the embedded voice
        (StepTimes(0.040, 0.030, 0.009), 1, 2),
        (StepTimes(0.030, 0.012, 0.009), 2, 1),
        (StepTimes(0.090, 0.030, 0.010), 1, None),  # slower than playback
        (StepTimes(0.030, 0.012, 0.020), 4, None),  # four streams are
    ],
)
def test_first_packet(times: StepTimes, streams: int, frames: int | None) -> None:
    assert first_packet_frames(times, streams=streams) == frames


@given(times, st.integers(1, 4))
def test_a_listener_who_buffers_more_gets_no_larger_first_packet(times: StepTimes, streams: int) -> None:
    alone = first_packet_frames(times, streams=streams)
    buffered = first_packet_frames(times, streams=streams, lead_s=0.3)
    if alone is not None:
        assert buffered is not None
        assert buffered <= alone <= MAX_FIRST_FRAMES


@given(st.lists(st.tuples(st.floats(0.0, 0.5), st.integers(1, 12)), min_size=1, max_size=40))
def test_gapless_first_audio_is_the_smallest_delay_without_an_underrun(pieces: list[tuple[float, int]]) -> None:
    """Against brute force: the playback simulation of the benchmarks, started later and later."""
    timing, now_s = StreamTiming(), 0.0
    timing.mark(Mark.RECEIVED, 0.0)
    arrivals = []
    for wait_s, frames in pieces:
        now_s += wait_s
        timing.packet(now_s, frames * FRAME_S)
        arrivals.append((now_s, frames * FRAME_S))

    def has_underrun(start_s: float) -> bool:
        end_s = start_s
        for arrived_s, audio_s in arrivals:
            if arrived_s > end_s + 1e-9:
                return True
            end_s += audio_s
        return False

    found_s = timing.gapless_first_audio_s
    assert not has_underrun(found_s)
    assert found_s == pytest.approx(arrivals[0][0]) or has_underrun(found_s - 1e-6)
    samples = [(at_s, np.ones(round(audio_s * RATE_HZ), np.int16)) for at_s, audio_s in arrivals]
    if found_s == pytest.approx(arrivals[0][0]):
        assert simulate_playback(samples, RATE_HZ).underrun_s < 1e-6


def test_waits_for_the_clients_text_are_not_gaps() -> None:
    timing = StreamTiming()
    timing.mark(Mark.RECEIVED, 0.0)
    timing.packet(0.1, FRAME_S)
    timing.text_wait_began(0.15)
    timing.text_wait_ended(5.15)
    timing.packet(5.2, FRAME_S)
    assert timing.gapless_first_audio_s == pytest.approx(0.12)


def test_start_delay_is_told_for_a_model_slower_than_playback() -> None:
    slow = StepTimes(0.090, 0.030, 0.010)
    frames = 100
    delay_s = start_delay_s(slow, frames=frames)
    assert play(PacketPolicy((4,)), slow, frames).gapless_first_audio_s == pytest.approx(delay_s, rel=0.15)
    assert start_delay_s(StepTimes(0.004, 0.003, 0.001), frames=frames) == 0.0


@given(times, st.integers())
def test_timer_recovers_the_times_it_is_shown(times: StepTimes, seed: int) -> None:
    timer, generator = StepTimer(), random.Random(seed)
    assert timer.times() is None
    for _ in range(60):
        timer.add_step(times.step_s)
        frames = generator.choice((1, 2, 4, 8))
        timer.add_window(frames, times.window_s(frames))
    found = timer.times()
    assert found is not None
    assert found.step_s == pytest.approx(times.step_s)
    for frames in (1, 4, 8):
        assert found.window_s(frames) == pytest.approx(times.window_s(frames), rel=1e-3, abs=1e-6)


def test_single_slow_steps_do_not_count() -> None:
    timer = StepTimer()
    for number in range(15):
        timer.add_step(0.4 if number % 5 == 0 else 0.004)
        timer.add_window(1 + number % 4, 0.5 if number % 4 == 1 else 0.003 + 0.001 * (1 + number % 4))
    times = timer.times()
    assert times is not None
    assert times.step_s == 0.004
    assert times.window_s(4) < 0.05


def test_timer_with_one_window_size_is_safe() -> None:
    """One size does not separate fixed time from time per frame; short windows must not look too cheap or negative."""
    timer = StepTimer()
    timer.add_step(0.01)
    for _ in range(5):
        timer.add_window(4, 0.04)
    times = timer.times()
    assert times is not None
    assert times.call_s == 0.0
    assert times.frame_s == pytest.approx(0.01)
