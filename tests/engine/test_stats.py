"""Statistics without an engine: histograms, outcomes, and which streams count."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from legato.engine.stats import (
    ROWS,
    SECONDS,
    STAGES,
    EngineSnapshot,
    EngineStats,
    Histogram,
    Mark,
    PoolUse,
    StepPhase,
    StreamTiming,
)


def snapshot(stats: EngineStats) -> EngineSnapshot:
    return stats.snapshot(streams_open=1, streams_parked=0, talker_slots=PoolUse(3, 2), codec_slots=PoolUse(2, 1))


def finished(*packet_s: float, audio_s: float = 0.1) -> StreamTiming:
    """Timing of a stream with marks one second apart and packets at the given times."""
    timing = StreamTiming()
    for number, mark in enumerate(list(Mark)[:-2]):
        timing.mark(mark, float(number))
    for now_s in packet_s:
        timing.packet(now_s, audio_s)
    return timing


@given(st.lists(st.floats(0.0, 100.0), max_size=30))
def test_histogram_counts_each_value_once(values: list[float]) -> None:
    histogram = Histogram(SECONDS)
    for value in values:
        histogram.observe(value)
    got = histogram.value()
    assert got.count == len(values)
    assert got.total == pytest.approx(sum(values))
    for number, bound in enumerate(got.bounds):
        assert sum(got.counts[: number + 1]) == sum(value <= bound for value in values)
    if values:
        assert got.quantile_bound(1.0) >= max(values) or got.quantile_bound(1.0) == float("inf")


def test_stream_is_counted_by_stages_packets_and_outcome() -> None:
    stats = EngineStats()
    stats.add_stream(finished(7.0, 7.05, 7.5), "eos", "", live=True, paced=False)
    got = snapshot(stats)
    assert got.outcomes == {"eos": 1}
    assert got.errors == {}
    assert {name: value.mean for name, value in got.stages_s.items()} == {name: 1.0 for name, _, _ in STAGES}
    assert got.first_packet_s.mean == 7.0
    assert got.packet_gap_s.count == 2
    assert got.underruns == 1
    assert got.underrun_s == pytest.approx(0.3)
    assert got.real_time_factor.mean == pytest.approx((7.5 - 2.0) / 0.3)
    assert got.audio_s == pytest.approx(0.3)
    assert got.talker_slots.free == 2


def test_gaps_count_for_live_and_rtf_for_unlimited_streams() -> None:
    stats = EngineStats()
    stats.add_stream(finished(7.0, 9.0), "eos", "", live=False, paced=False)
    stats.add_stream(finished(7.0, 9.0), "eos", "", live=True, paced=True)
    got = snapshot(stats)
    assert got.first_packet_s.count == 2
    assert got.packet_gap_s.count == got.underruns == 1
    assert got.real_time_factor.count == 0


def test_failures_without_packets_are_counted_by_code() -> None:
    stats = EngineStats()
    stats.add_stream(StreamTiming(), "failed", "too_long", live=True, paced=False)
    got = snapshot(stats)
    assert (got.outcomes, got.errors) == ({"failed": 1}, {"too_long": 1})
    assert got.first_packet_s.count == 0


def test_compute_with_zero_rows_is_not_counted() -> None:
    stats = EngineStats()
    stats.add_compute(StepPhase.CODEC, 3, 0.25)
    stats.add_compute(StepPhase.CODEC, 0, 99.0)
    got = snapshot(stats)
    assert got.rows["codec"].total == 3
    assert got.rows["codec"].bounds == ROWS
    assert (got.busy_s["codec"].count, got.busy_s["codec"].total) == (1, 0.25)


def test_snapshot_does_not_change_later() -> None:
    stats = EngineStats()
    before = snapshot(stats)
    stats.add_stream(finished(7.0), "eos", "", live=True, paced=False)
    stats.add_frames(4)
    assert before.outcomes == {}
    assert before.frames == before.first_packet_s.count == 0


def test_rtf_does_not_count_waits_for_text() -> None:
    """The stream is admitted at 2 s and ends at 7.5 s; for 0.35 s of this it waits for its client."""
    timing = finished(7.0)
    for began_s, ended_s in ((7.0, 7.25), (7.3, 7.4)):
        timing.text_wait_began(began_s)
        timing.text_wait_ended(ended_s)
    timing.packet(7.5, 0.1)
    assert timing.text_stall_s == pytest.approx(0.35)
    assert timing.real_time_factor() == pytest.approx((7.5 - 2.0 - 0.35) / 0.2)
    stats = EngineStats()
    stats.add_stream(timing, "eos", "", live=True, paced=False)
    assert snapshot(stats).real_time_factor.mean == pytest.approx((7.5 - 2.0 - 0.35) / 0.2)
    assert snapshot(stats).text_wait_s == pytest.approx(0.35)
