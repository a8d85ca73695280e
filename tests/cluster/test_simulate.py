"""Simulated clusters: known results in simple cases, the same result for the same seed, and the capacity plan."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from legato.cluster.simulate.__main__ import main
from legato.cluster.simulate.model import FRAME_S, Arrival, ClusterModel, Outcome, StepTimes, poisson, simulate
from legato.cluster.simulate.plan import Goal, Load, find_plan, read_steps
from legato.errors import ConfigError, InputError

STEPS = StepTimes(((1, 0.04), (2, 0.05), (4, 0.07)), prefill_s=0.02)
MODEL = ClusterModel(STEPS, slots=4, replicas=1, overhead_s=0.0)


def test_step_times_are_interpolated_and_continued() -> None:
    assert [STEPS.step_s(streams) for streams in (1, 2, 3, 4, 6)] == pytest.approx([0.04, 0.05, 0.06, 0.07, 0.09])
    assert StepTimes(((1, 0.03), (2, 0.05)), 0.0).real_time_streams() == 3
    assert StepTimes(((1, 0.09),), 0.0).real_time_streams() == 0


def test_one_stream_takes_its_prefill_and_its_steps() -> None:
    outcome = simulate([Arrival(1.0, 10)], replace(MODEL, overhead_s=0.01), seed=0)
    assert outcome.first_audio_s == pytest.approx([0.02 + 0.04 + 0.01])
    assert outcome.total_s == pytest.approx([0.02 + 10 * 0.04 + 0.01])
    assert outcome.speech_s == pytest.approx(0.8)
    assert (outcome.refused, outcome.underruns) == (0, 0)


def test_streams_of_one_step_slow_each_other_down_and_others_wait_for_a_slot() -> None:
    both = simulate([Arrival(0.0, 10), Arrival(0.0, 10)], replace(MODEL, replicas=2), seed=0)
    assert both.total_s == pytest.approx([0.42, 0.42])  # one on each replica
    assert sorted(both.served_by) == [0, 1]
    one = simulate([Arrival(0.0, 10), Arrival(0.0, 10)], replace(MODEL, slots=1), seed=0)
    assert one.total_s == pytest.approx([0.42, 0.84])


def test_full_queue_refuses() -> None:
    outcome = simulate([Arrival(0.0, 100)] * 5, replace(MODEL, slots=1, queue=1), seed=0)
    assert (outcome.refused, len(outcome.total_s), outcome.requests) == (3, 2, 5)


def test_steps_longer_than_a_frame_interrupt_playback() -> None:
    slow = StepTimes(((1, 0.1),), prefill_s=0.0)
    assert simulate([Arrival(0.0, 50)], replace(MODEL, steps=slow), seed=0).underruns == 1
    assert simulate([Arrival(0.0, 5)], replace(MODEL, steps=slow), seed=0).underruns == 0  # the prebuffer covers it
    assert simulate([Arrival(0.0, 50)], MODEL, seed=0).underruns == 0


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 1000), st.integers(1, 4), st.integers(1, 3), st.none() | st.integers(4, 6))
def test_every_request_ends_once_and_a_seed_decides_everything(
    seed: int, replicas: int, proxies: int, most: int | None
) -> None:
    arrivals = poisson([(5.0, 4.0), (5.0, 12.0)], 1.0, seed)
    model = replace(MODEL, replicas=replicas, proxies=proxies, max_replicas=most, start_s=1.0, downscale_s=2.0, queue=3)
    outcome = simulate(arrivals, model, seed)
    assert outcome == simulate(arrivals, model, seed)
    assert outcome.requests == len(arrivals)
    assert len(outcome.first_audio_s) == len(outcome.total_s) == len(outcome.served_by)
    assert outcome.most_replicas <= (most or replicas)
    served_s = len(arrivals) and sum(arrival.frames for arrival in arrivals) * FRAME_S
    assert outcome.speech_s <= served_s + 1e-6
    if not outcome.refused:
        assert outcome.speech_s == pytest.approx(served_s)


def test_replicas_get_an_even_load() -> None:
    outcome = simulate(poisson([(120.0, 3.0)], 2.0, 1), replace(MODEL, replicas=2, proxies=2), seed=1)
    share = outcome.served_by.count(0) / len(outcome.served_by)
    assert 0.45 <= share <= 0.55


def test_autoscaling_shortens_a_burst() -> None:
    arrivals = poisson([(30.0, 1.0), (120.0, 5.0)], 4.0, 2)
    fixed = simulate(arrivals, MODEL, seed=2)
    scaled = simulate(arrivals, replace(MODEL, max_replicas=8, start_s=10.0), seed=2)
    assert scaled.most_replicas > 1
    assert scaled.first_audio_quantile(0.9) < fixed.first_audio_quantile(0.9) / 2
    defaults = replace(MODEL, max_replicas=8, start_s=10.0, report_s=10.0, look_back_s=30.0)  # of Serve
    assert scaled.first_audio_quantile(0.9) < simulate(arrivals, defaults, seed=2).first_audio_quantile(0.9)
    late = simulate(arrivals, replace(MODEL, max_replicas=8, start_s=60.0), seed=2)
    assert late.first_audio_quantile(0.9) > scaled.first_audio_quantile(0.9)


def test_plan_is_the_smallest_that_meets_the_goal() -> None:
    load, goal = Load(streams=20.0, mean_s=3.0, duration_s=30.0), Goal(p99_s=0.4)
    plan = find_plan(load, MODEL, goal, cell_streams=100.0, seed=3)
    assert goal.met(plan.outcome)
    arrivals = poisson([(load.duration_s, load.rate_hz)], load.mean_s, 3)
    assert not goal.met(simulate(arrivals, replace(MODEL, replicas=plan.replicas - 1), 3))
    cells = find_plan(replace(load, streams=40.0), MODEL, goal, cell_streams=20.0, seed=3)
    assert (cells.cells, cells.total_replicas) == (2, 2 * plan.replicas)


def test_impossible_goal_names_the_way_out() -> None:
    with pytest.raises(InputError, match="larger p99"):
        find_plan(Load(2.0, 1.0, 10.0), MODEL, Goal(p99_s=0.01), cell_streams=10.0, seed=0)


def test_empty_outcome_meets_no_goal() -> None:
    assert not Goal().met(Outcome())


def record(streams: int, total_s: float, mode: str = "default") -> str:
    values = {"kind": "batch", "mode": mode, "streams": streams, "frames": 10 * streams}
    return json.dumps({**values, "total_s": total_s, "prefill_s": 0.1 * streams})


def test_step_times_come_from_benchmark_records() -> None:
    lines = [record(2, 0.9), record(1, 0.5), "", record(1, 9.0, "deterministic"), '{"kind": "memory"}']
    steps = read_steps(lines)
    assert dict(steps.points) == pytest.approx({1: 0.04, 2: 0.07})
    assert steps.prefill_s == pytest.approx(0.1)


@pytest.mark.parametrize("line", ["", "{", "[]", '{"kind": "batch"}', '{"kind": "load"}', record(1, 1.0, "other")])
def test_bad_records_are_named(line: str) -> None:
    with pytest.raises(ConfigError, match="legato bench batch"):
        read_steps([line])


def test_command_prints_a_plan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "steps.jsonl"
    path.write_text("\n".join([record(1, 0.5), record(2, 0.9)]))
    words = ["--steps", str(path), "--streams", "5", "--seconds", "10", "--price", "2", "--burst", "2"]
    assert main([*words]) == 0
    printed = capsys.readouterr().out
    assert "2 slots each" in printed
    assert "per hour of speech; cost" in printed
    assert "autoscaled" in printed
    assert main(["--steps", str(tmp_path / "missing")]) == 1
    path.write_text(record(1, 1.5))
    assert main(["--steps", str(path)]) == 1
    assert "slower than real time" in capsys.readouterr().err
