"""Percentiles are values that were measured, means of stages add up, and a load's throughput is by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from legato.bench.records import ALL_STAGES
from legato.bench.summary import PERCENTS, case_of, labels, percentile, spread, summaries
from tests.bench.made import MODEL, asked, record, sound

VALUES = st.lists(st.floats(0.0, 1e6), min_size=1, max_size=60)
STAGES = st.lists(
    st.floats(0.0, 1000.0).map(lambda ms: round(ms, 3)), min_size=len(ALL_STAGES), max_size=len(ALL_STAGES)
)


@given(VALUES, st.integers(0, 100))
def test_a_percentile_is_the_smallest_value_that_so_many_do_not_exceed(values: list[float], percent: int) -> None:
    got = percentile(values, percent)
    assert got in values
    assert 100 * sum(value <= got for value in values) >= percent * len(values)
    assert 100 * sum(value < got for value in values) < percent * len(values) or got == min(values)


@given(VALUES)
def test_percentiles_rise_between_the_ends(values: list[float]) -> None:
    got = spread(values)
    assert got.count == len(values)
    assert got.least == percentile(values, 0) <= got.p50 <= got.p90 <= got.p99 <= got.most == percentile(values, 100)
    assert got.least <= got.mean * (1 + 1e-9)
    assert got.mean <= got.most * (1 + 1e-9)


def test_percentiles_by_hand() -> None:
    assert [percentile([30.0, 10.0, 20.0, 40.0], percent) for percent in (0, 25, 26, *PERCENTS)] == [
        *(10.0, 10.0, 20.0),
        *(20.0, 40.0, 40.0),
    ]
    assert spread([]).count == 0


@given(st.lists(STAGES, min_size=1, max_size=8))
def test_means_of_stages_sum_to_the_mean_first_sound(requests: list[list[float]]) -> None:
    (got,) = summaries(record(asked(number), sounds=(sound(stages),)) for number, stages in enumerate(requests))
    whole = sum(each.mean for each in got.stages_ms.values()) + got.unaccounted_ms.mean
    assert whole == pytest.approx(got.first_sound_ms.mean)
    assert got.lm_ms.mean + got.codec_ms.mean == pytest.approx(got.first_packet_ms.mean)


def test_a_case_is_what_was_asked_alike_and_counts_what_became_of_it() -> None:
    of_load = [record(asked(number, concurrency=3)) for number in range(4)]
    of_load += [
        record(asked(4, concurrency=3), sounds=()),
        record(asked(5, concurrency=3), sounds=(sound(underruns=2),)),
    ]
    alone, load = summaries([record(asked(0)), *of_load])
    assert (alone.asked, alone.refused, alone.kept) == (1, 0, 1)
    assert (load.asked, load.spoken, load.refused, load.failed) == (6, 5, 1, 0)
    assert (load.kept, load.underruns, load.underrun_ms) == (4, 2, 20.0)
    assert labels([alone.case, load.case]) == ["in-process, warm, 1 at once", "in-process, warm, 3 at once"]


def test_a_label_names_what_differs_and_no_more() -> None:
    other = replace(record(), model=replace(MODEL, talker_dtype="bfloat16"))
    assert labels([case_of(record()), case_of(other)]) == [
        "float32, in-process, warm",
        "bfloat16, in-process, warm",
    ]
    assert labels([]) == []


def test_throughput_is_all_sound_over_the_time_from_the_first_request_to_the_last_sound() -> None:
    """Two streams of 0.64 s: one asked at 0 and over at 0.1 s, one asked at 1 s and over at 1.6 s."""
    stages = [0.0] * (len(ALL_STAGES) - 2) + [100.0, 0.0]
    first = record(asked(0), at_s=0.0, sounds=(sound(stages, gaps_ms=(0.0,)),))
    second = record(asked(1), at_s=1.0, sounds=(sound(stages, gaps_ms=(500.0,)),))
    (got,) = summaries([first, second])
    assert got.audio_s_per_s == pytest.approx(2 * 0.64 / 1.6)
    assert got.gaps_ms.most == 500.0
    assert got.frame_ms.most == pytest.approx(500.0 / 4)


def test_runs_of_a_case_are_averaged_and_not_laid_over_each_other() -> None:
    runs = [record(replace(asked(0), run=run)) for run in (0, 1)]
    (together,), (alone,) = summaries(runs), summaries(runs[:1])
    assert together.asked == 2
    assert together.audio_s_per_s == pytest.approx(alone.audio_s_per_s)
