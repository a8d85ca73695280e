"""Percentiles are measured values, means of stages add up, and throughput matches examples computed by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from legato.bench.records import ALL_STAGES
from legato.bench.summary import PERCENTS, case_of, distribution, labels, percentile, summaries
from tests.bench.sample_records import MODEL, make_audio, make_record, make_request

VALUES = st.lists(st.floats(0.0, 1e6), min_size=1, max_size=60)
STAGES = st.lists(
    st.floats(0.0, 1000.0).map(lambda ms: round(ms, 3)), min_size=len(ALL_STAGES), max_size=len(ALL_STAGES)
)


@given(VALUES, st.integers(0, 100))
def test_percentile_is_the_nearest_rank(values: list[float], percent: int) -> None:
    got = percentile(values, percent)
    assert got in values
    assert 100 * sum(value <= got for value in values) >= percent * len(values)
    assert 100 * sum(value < got for value in values) < percent * len(values) or got == min(values)


@given(VALUES)
def test_percentiles_are_ordered_between_minimum_and_maximum(values: list[float]) -> None:
    got = distribution(values)
    assert got.count == len(values)
    assert (
        got.minimum == percentile(values, 0) <= got.p50 <= got.p90 <= got.p99 <= got.maximum == percentile(values, 100)
    )
    assert got.minimum <= got.mean * (1 + 1e-9)
    assert got.mean <= got.maximum * (1 + 1e-9)


def test_percentiles_of_four_values() -> None:
    values = [30.0, 10.0, 20.0, 40.0]
    assert [percentile(values, percent) for percent in (0, 25, 26)] == [10.0, 10.0, 20.0]
    assert [percentile(values, percent) for percent in PERCENTS] == [20.0, 40.0, 40.0]
    assert distribution([]).count == 0


@given(st.lists(STAGES, min_size=1, max_size=8))
def test_means_of_stages_add_up_to_the_mean_start_of_playback(requests: list[list[float]]) -> None:
    records = [make_record(make_request(index), audio=make_audio(stages)) for index, stages in enumerate(requests)]
    (got,) = summaries(records)
    whole = sum(each.mean for each in got.stages_ms.values()) + got.unaccounted_ms.mean
    assert whole == pytest.approx(got.first_sound_ms.mean)
    assert got.lm_ms.mean + got.codec_ms.mean == pytest.approx(got.first_packet_ms.mean)


def test_summary_groups_by_case_and_counts_outcomes() -> None:
    of_load = [make_record(make_request(number, concurrency=3)) for number in range(4)]
    of_load += [
        make_record(make_request(4, concurrency=3), audio=None),
        make_record(make_request(5, concurrency=3), audio=make_audio(underruns=2)),
    ]
    single, load = summaries([make_record(make_request(0)), *of_load])
    assert (single.requests, single.refused, single.without_underrun) == (1, 0, 1)
    assert (load.requests, load.completed, load.refused, load.failed) == (6, 5, 1, 0)
    assert (load.without_underrun, load.underruns, load.underrun_ms) == (4, 2, 20.0)
    assert labels([single.case, load.case]) == ["in-process, warm, 1 concurrent", "in-process, warm, 3 concurrent"]


def test_labels_name_only_what_differs() -> None:
    other = replace(make_record(), model=replace(MODEL, talker_dtype="bfloat16"))
    assert labels([case_of(make_record()), case_of(other)]) == [
        "float32, in-process, warm",
        "bfloat16, in-process, warm",
    ]
    assert labels([]) == []


def test_throughput_is_all_audio_over_the_time_from_first_request_to_last_piece() -> None:
    """Two streams of 0.64 s: one from 0 to 0.1 s, one from 1 to 1.6 s."""
    stages = [0.0] * (len(ALL_STAGES) - 2) + [100.0, 0.0]
    first = make_record(make_request(0), at_s=0.0, audio=make_audio(stages, gaps_ms=(0.0,)))
    second = make_record(make_request(1), at_s=1.0, audio=make_audio(stages, gaps_ms=(500.0,)))
    (got,) = summaries([first, second])
    assert got.audio_s_per_s == pytest.approx(2 * 0.64 / 1.6)
    assert got.gaps_ms.maximum == 500.0
    assert got.frame_ms.maximum == pytest.approx(500.0 / 4)


def test_throughput_is_averaged_over_runs() -> None:
    runs = [make_record(replace(make_request(0), run=run)) for run in (0, 1)]
    (both,), (single,) = summaries(runs), summaries(runs[:1])
    assert both.requests == 2
    assert both.audio_s_per_s == pytest.approx(single.audio_s_per_s)


def test_throughput_span_begins_with_the_first_request_and_ends_with_the_last_piece_of_any() -> None:
    """Sent at 11 and 10 s; the one that was sent first ends last, at 13.1 s. A refused request counts for nothing."""
    stages = [0.0] * (len(ALL_STAGES) - 2) + [100.0, 0.0]
    late = make_record(make_request(0), at_s=11.0, audio=make_audio(stages, gaps_ms=(0.0,)))
    early = make_record(make_request(1), at_s=10.0, audio=make_audio(stages, gaps_ms=(3000.0,)))
    refused = make_record(make_request(2), at_s=2.0, audio=None)
    for order in ([late, early, refused], [early, late, refused], [refused, early, late]):
        (got,) = summaries(order)
        assert got.audio_s_per_s == pytest.approx(2 * 0.64 / 3.1)
