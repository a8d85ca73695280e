"""Capacity plans: the smallest cluster that meets a goal, from simulations. Holds no state.

A large service is divided into cells of equal size behind one load balancer: Serve's controller and its routers
look at every replica of their cluster.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

from legato.cluster.simulate.model import FRAME_S, ClusterModel, Outcome, StepTimes, poisson, simulate
from legato.errors import ConfigError, InputError


@dataclass(frozen=True, slots=True)
class Goal:
    """Goal of a plan: p99 of the first audio, and the largest shares of refused and of interrupted streams."""

    p99_s: float = 0.5
    refused: float = 0.001
    underruns: float = 0.01

    def met(self, outcome: Outcome) -> bool:
        return (
            outcome.first_audio_quantile(0.99) <= self.p99_s
            and outcome.refused_share <= self.refused
            and outcome.underrun_share <= self.underruns
        )


@dataclass(frozen=True, slots=True)
class Load:
    """`streams`: mean number of streams that play at the same time. `mean_s`: mean speech of one. `duration_s`: of the
    simulated time.
    """

    streams: float
    mean_s: float = 6.0
    duration_s: float = 60.0

    @property
    def rate_hz(self) -> float:
        """Requests per second."""
        return self.streams / self.mean_s


@dataclass(frozen=True, slots=True)
class Plan:
    """`cells` clusters of `replicas` replicas each, and the simulation of one of them."""

    cells: int
    replicas: int
    outcome: Outcome

    @property
    def total_replicas(self) -> int:
        return self.cells * self.replicas


def read_steps(lines: Iterable[str]) -> StepTimes:
    """Step times from records of `legato bench batch --records`. `ConfigError` if there are none.

    Deterministic mode is used if only that was measured.
    """
    found: dict[str, dict[int, tuple[float, float]]] = {"default": {}, "deterministic": {}}
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
            if record["kind"] == "batch":
                streams, frames = record["streams"], record["frames"] / record["streams"]
                step_s = (record["total_s"] - record["prefill_s"]) / frames
                found[record["mode"]][streams] = (step_s, record["prefill_s"] / streams)
        except (ValueError, KeyError, TypeError, ZeroDivisionError) as error:
            raise ConfigError(f"line {number} is not a record of `legato bench batch --records`: {error!r}") from error
    measured = found["default"] or found["deterministic"]
    if not measured:
        raise ConfigError("no record of kind 'batch': write them with `legato bench batch --records FILE`")
    points = tuple((streams, measured[streams][0]) for streams in sorted(measured))
    return StepTimes(points, prefill_s=measured[points[0][0]][1])


def find_plan(load: Load, model: ClusterModel, goal: Goal, *, cell_streams: float, seed: int) -> Plan:
    """The smallest cells that meet `goal`; `model.replicas` is ignored. `InputError` if no number of replicas does."""
    cells = max(1, math.ceil(load.streams / cell_streams))
    cell = replace(load, streams=load.streams / cells)
    arrivals = poisson([(cell.duration_s, cell.rate_hz)], cell.mean_s, seed)

    def run(replicas: int) -> Outcome:
        return simulate(arrivals, replace(model, replicas=replicas, max_replicas=None), seed)

    # Streams of one replica if it is always full: fewer replicas than this cannot keep up.
    per_replica = model.slots * FRAME_S / model.steps.step_s(model.slots)
    low = max(1, math.floor(cell.streams / per_replica)) - 1
    high, outcome = low + 1, run(low + 1)
    limit = math.ceil(4 * cell.streams / per_replica) + 4
    while not goal.met(outcome):
        if high >= limit:
            raise InputError(
                f"{high} replicas miss the goal: p99 of first audio {outcome.first_audio_quantile(0.99):.3f} s, "
                f"interrupted {outcome.underrun_share:.1%}; allow a larger p99 or use fewer slots",
                field="p99_s",
            )
        low, high = high, min(limit, high + max(1, math.ceil(high * 0.15)))
        outcome = run(high)
    while high - low > 1:
        middle = (low + high) // 2
        tried = run(middle)
        if goal.met(tried):
            high, outcome = middle, tried
        else:
            low = middle
    return Plan(cells, high, outcome)
