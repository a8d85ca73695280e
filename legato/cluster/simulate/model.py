"""Discrete-event simulation of replicas behind the cluster's router.

A replica runs engine steps, which advance all of its streams by one frame. A `_Simulation` owns all state of one
run. The routing decision is that of `load.rank_replicas`, with the delayed reports that a router really has.
"""

from __future__ import annotations

import heapq
import math
import random
from bisect import bisect_left
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from legato.cluster.load import (
    DOWNSCALE_DELAY_S,
    METRICS_PERIOD_S,
    METRICS_WINDOW_S,
    STATS_PERIOD_S,
    TARGET_USE,
    UPSCALE_DELAY_S,
    InFlight,
    rank_replicas,
    replicas_needed,
)
from legato.errors import InputError

FRAME_S = 0.08
"""Audio of one frame."""
_CONTROL_S = 1.0


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Duration of an engine step, codec included, by the number of streams in it; linear between the measured points.

    `prefill_s`: time that the prefill of one stream adds to a step.
    """

    points: tuple[tuple[int, float], ...]
    """(streams, seconds), ascending."""
    prefill_s: float

    def __post_init__(self) -> None:
        rows = [each for each, _ in self.points]
        if not rows or rows != sorted(set(rows)) or rows[0] < 1 or min(step_s for _, step_s in self.points) <= 0:
            raise InputError("step times need ascending numbers of streams and positive seconds", field="points")
        if self.prefill_s < 0:
            raise InputError("prefill_s must not be negative", field="prefill_s")

    def step_s(self, streams: int) -> float:
        """Seconds of one step. Beyond the measured points, the line through the last two continues."""
        if len(self.points) == 1 or streams <= self.points[0][0]:
            return self.points[0][1]
        index = min(bisect_left(self.points, (streams, 0.0)), len(self.points) - 1)
        (low, low_s), (high, high_s) = self.points[index - 1], self.points[index]
        return low_s + (high_s - low_s) * (streams - low) / (high - low)

    def real_time_streams(self, limit: int = 4096) -> int:
        """The largest number of streams whose step is not longer than a frame, at most `limit`; 0 if there is none."""
        return max((streams for streams in range(1, limit + 1) if self.step_s(streams) <= FRAME_S), default=0)


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request: time of arrival and frames of audio that it generates."""

    at_s: float
    frames: int


@dataclass(frozen=True, slots=True)
class ClusterModel:
    """A cluster. `replicas` at all times, or between `replicas` and `max_replicas` with autoscaling.

    `slots`, `queue`: streams that one replica generates, and that wait. `first_frames`: frames of the first packet.
    `overhead_s`: time of a request outside the engine, up to the first audio. `prebuffer_s`: the client starts playback
    this long after the first audio. `start_s`: from the decision to add a replica until it serves. `report_s`,
    `look_back_s`, `upscale_s`, `downscale_s`: period of the scaling metric, its averaging window, and the delays.
    """

    steps: StepTimes
    slots: int
    replicas: int
    queue: int = 64
    proxies: int = 1
    first_frames: int = 1
    overhead_s: float = 0.01
    prebuffer_s: float = 0.2
    max_replicas: int | None = None
    target_use: float = TARGET_USE
    start_s: float = 60.0
    report_s: float = METRICS_PERIOD_S
    look_back_s: float = METRICS_WINDOW_S
    upscale_s: float = UPSCALE_DELAY_S
    downscale_s: float = DOWNSCALE_DELAY_S

    def __post_init__(self) -> None:
        for name in ("slots", "replicas", "proxies", "first_frames"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} must be at least 1", field=name)
        if self.max_replicas is not None and self.max_replicas < self.replicas:
            raise InputError("max_replicas must be at least replicas", field="max_replicas")


@dataclass(slots=True)
class Outcome:
    """Result of a simulation. Times are in seconds; `first_audio_s` has one value for each request that was served."""

    first_audio_s: list[float] = field(default_factory=list)
    total_s: list[float] = field(default_factory=list)
    served_by: list[int] = field(default_factory=list)
    """Index of the replica, in the order in which the streams ended."""
    refused: int = 0
    underruns: int = 0
    """Streams whose playback had a gap."""
    speech_s: float = 0.0
    replica_s: float = 0.0
    """Sum of the times for which replicas were running or starting."""
    most_replicas: int = 0

    @property
    def requests(self) -> int:
        return len(self.first_audio_s) + self.refused

    @property
    def refused_share(self) -> float:
        return self.refused / self.requests if self.requests else 0.0

    @property
    def underrun_share(self) -> float:
        return self.underruns / len(self.total_s) if self.total_s else 0.0

    @property
    def replica_hours_per_speech_hour(self) -> float:
        """Replica hours per hour of speech; infinity without speech."""
        return self.replica_s / self.speech_s if self.speech_s else math.inf

    def first_audio_quantile(self, q: float) -> float:
        """Nearest-rank quantile; infinity if nothing was served."""
        ordered = sorted(self.first_audio_s)
        return ordered[max(0, math.ceil(q * len(ordered)) - 1)] if ordered else math.inf


def poisson(rates: Sequence[tuple[float, float]], mean_s: float, seed: int) -> list[Arrival]:
    """Random arrivals. `rates`: (seconds, requests per second) of consecutive intervals.

    `mean_s`: mean length of the speech of a request; lengths are exponential, and at least one frame.
    """
    rng, found, start_s = random.Random(seed), [], 0.0
    for duration_s, rate_hz in rates:
        at_s, end_s = start_s, start_s + duration_s
        while rate_hz > 0 and (at_s := at_s + rng.expovariate(rate_hz)) < end_s:
            found.append(Arrival(at_s, max(1, math.ceil(rng.expovariate(1 / mean_s) / FRAME_S))))
        start_s = end_s
    return found


def simulate(arrivals: Sequence[Arrival], model: ClusterModel, seed: int) -> Outcome:
    """Serve `arrivals`, in order of time, until every stream has ended. The same arguments give the same outcome."""
    return _Simulation(model, seed).run(arrivals)


@dataclass(slots=True)
class _Stream:
    arrival: Arrival
    router: InFlight
    frames: int = 0
    first_s: float = math.inf
    gap: bool = False


@dataclass(slots=True)
class _Replica:
    """One engine. `reported`: streams in the report that routers see; `next_report`: those of the report on its way."""

    index: int
    name: str
    started_s: float
    ready_s: float
    queue: deque[_Stream] = field(default_factory=deque)
    running: list[_Stream] = field(default_factory=list)
    stepping: bool = False
    stopping: bool = False
    ended_s: float | None = None
    reported: int | None = None
    next_report: int | None = None
    samples: deque[tuple[float, int]] = field(default_factory=deque)

    @property
    def streams(self) -> int:
        return len(self.queue) + len(self.running)


class _Simulation:
    def __init__(self, model: ClusterModel, seed: int) -> None:
        self._model = model
        self._rng = random.Random(seed)
        self._now_s = 0.0
        self._routers = [InFlight(lambda: self._now_s) for _ in range(model.proxies)]
        self._outcome = Outcome()
        self._events: list[tuple[float, int, str, _Replica | None, Arrival | None]] = []
        self._number = 0
        self._replicas: list[_Replica] = []
        self._wanted_since: tuple[int, float] | None = None
        """Direction in which scaling is due, and since when."""
        self._left = 0
        """Requests that have not ended."""

    def run(self, arrivals: Sequence[Arrival]) -> Outcome:
        model, outcome = self._model, self._outcome
        for _ in range(model.replicas):
            self._add_replica(ready_s=0.0)
        for each in arrivals:
            self._at(each.at_s, "arrival", arrival=each)
        self._left = len(arrivals)
        if model.max_replicas is not None:
            self._at(0.0, "control")
        while self._left:
            self._now_s, _, kind, replica, arrival = heapq.heappop(self._events)
            if arrival is not None:
                self._arrive(arrival)
            elif replica is None:
                self._control()
            elif kind == "step":
                self._finish_step(replica)
            else:
                self._report(replica)
        for replica in self._replicas:
            outcome.replica_s += (self._now_s if replica.ended_s is None else replica.ended_s) - replica.started_s
        return outcome

    def _at(self, time_s: float, kind: str, *, replica: _Replica | None = None, arrival: Arrival | None = None) -> None:
        self._number += 1  # events of one time keep their order
        heapq.heappush(self._events, (time_s, self._number, kind, replica, arrival))

    def _add_replica(self, *, ready_s: float) -> None:
        index = len(self._replicas)
        replica = _Replica(index, f"r{index}", self._now_s, ready_s)
        self._replicas.append(replica)
        self._at(ready_s + self._rng.uniform(0, STATS_PERIOD_S), "report", replica=replica)
        self._outcome.most_replicas = max(self._outcome.most_replicas, len(list(self._existing())))

    def _existing(self) -> Iterator[_Replica]:
        return (replica for replica in self._replicas if replica.ended_s is None)

    def _arrive(self, arrival: Arrival) -> None:
        model = self._model
        router = self._rng.choice(self._routers)
        candidates = {
            replica.name: replica
            for replica in self._existing()
            if replica.ready_s <= self._now_s and not replica.stopping
        }
        loads = {
            name: None if replica.reported is None else router.load(name, replica.reported, model.slots)
            for name, replica in candidates.items()
        }
        replica = candidates[rank_replicas(loads, self._rng)[0][0]]
        if replica.streams >= model.slots + model.queue:
            self._outcome.refused += 1
            self._left -= 1
            return
        router.sent("", replica.name)
        replica.queue.append(_Stream(arrival, router))
        if not replica.stepping:
            self._start_step(replica)

    def _start_step(self, replica: _Replica) -> None:
        """Admit waiting streams, and run a step if there is work."""
        admitted = min(len(replica.queue), self._model.slots - len(replica.running))
        replica.running += [replica.queue.popleft() for _ in range(admitted)]
        replica.stepping = bool(replica.running)
        if replica.running:
            steps = self._model.steps
            step_s = steps.step_s(len(replica.running)) + admitted * steps.prefill_s
            self._at(self._now_s + step_s, "step", replica=replica)
        elif replica.stopping:
            replica.ended_s = self._now_s

    def _finish_step(self, replica: _Replica) -> None:
        model, outcome, running = self._model, self._outcome, []
        for stream in replica.running:
            stream.frames += 1
            if stream.first_s == math.inf and stream.frames >= min(model.first_frames, stream.arrival.frames):
                stream.first_s = self._now_s
                outcome.first_audio_s.append(self._now_s - stream.arrival.at_s + model.overhead_s)
            elif self._now_s > stream.first_s + model.prebuffer_s + (stream.frames - 1) * FRAME_S:
                stream.gap = True  # this frame arrived after its playback time
            if stream.frames < stream.arrival.frames:
                running.append(stream)
                continue
            stream.router.done(replica.name)
            outcome.total_s.append(self._now_s - stream.arrival.at_s + model.overhead_s)
            outcome.served_by.append(replica.index)
            outcome.underruns += stream.gap
            outcome.speech_s += stream.frames * FRAME_S
            self._left -= 1
        replica.running = running
        self._start_step(replica)

    def _report(self, replica: _Replica) -> None:
        """A report of the load reaches the routers one period after it was made."""
        replica.reported, replica.next_report = replica.next_report, replica.streams
        if replica.ended_s is None:
            self._at(self._now_s + STATS_PERIOD_S, "report", replica=replica)

    def _control(self) -> None:
        """Sample the load, and scale by the cluster's rule when it has asked for that long enough."""
        model, now_s = self._model, self._now_s
        self._at(now_s + _CONTROL_S, "control")
        existing = [replica for replica in self._existing() if not replica.stopping]
        pushed_s = math.floor(now_s / model.report_s) * model.report_s
        means = []
        for replica in existing:
            if replica.ready_s <= now_s:
                replica.samples.append((now_s, replica.streams))
            while replica.samples and replica.samples[0][0] <= pushed_s - model.look_back_s:
                replica.samples.popleft()
            known = [streams for at_s, streams in replica.samples if at_s <= pushed_s]
            if known:
                means.append(sum(known) / len(known))
        if not means:
            return
        needed = replicas_needed(means, model.slots, target_use=model.target_use)
        wanted = min(max(needed, model.replicas), model.max_replicas or model.replicas)
        direction = (wanted > len(existing)) - (wanted < len(existing))
        if self._wanted_since is None or self._wanted_since[0] != direction:
            self._wanted_since = (direction, now_s)
        waited_s = now_s - self._wanted_since[1]
        if direction > 0 and waited_s >= model.upscale_s:
            for _ in range(wanted - len(existing)):
                self._add_replica(ready_s=now_s + model.start_s)
        elif direction < 0 and waited_s >= model.downscale_s:
            for replica in existing[wanted:]:
                replica.stopping = True
                if not replica.stepping:
                    replica.ended_s = now_s
