"""Prometheus metrics: engine statistics and request counters, in one registry per application.

`Metrics` owns the server's counters for the lifetime of the application. Engine metrics are not counted a second time:
each scrape converts the current snapshots of the engines.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from legato.engine.heartbeat import EngineHealth, ThreadState
from legato.engine.stats import SECONDS, EngineSnapshot, HistogramValue, Mark, StreamTiming

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_ENCODE_S = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5)


@dataclass(frozen=True, slots=True)
class EngineSources:
    """Where the metrics of one engine come from."""

    snapshot: Callable[[], EngineSnapshot]
    health: Callable[[], EngineHealth]
    jobs: Callable[[], Mapping[str, int]]
    """Jobs of the thread pools, running or waiting."""


class EngineCollector(Collector):
    """Converts the snapshots of all engines to Prometheus metrics, with the label `model`."""

    def __init__(self, engines: Mapping[str, EngineSources]) -> None:
        self._engines = engines

    def collect(self) -> Iterator[Metric]:
        """Yield all engine metrics; the registry calls this for every scrape."""
        families: dict[str, Metric] = {}
        for model, engine in self._engines.items():
            for family in _engine_metrics(engine):
                for sample in family.samples:
                    sample.labels["model"] = model
                if family.name in families:  # Prometheus' text format requires all samples of a name in one place
                    families[family.name].samples.extend(family.samples)
                else:
                    families[family.name] = family
        return iter(families.values())


def _engine_metrics(engine: EngineSources) -> Iterator[Metric]:
    """The metrics of one engine, without the label `model`."""
    snapshot = engine.snapshot()
    yield from _heartbeat(engine.health())
    yield from _thread_pools(engine.jobs())
    yield from _gauges(snapshot)
    yield from _counters(snapshot)
    yield from _histograms(snapshot)


def _heartbeat(health: EngineHealth) -> Iterator[Metric]:
    states = GaugeMetricFamily("legato_engine_thread", "State of the engine thread: 1 for its state.", labels=["state"])
    for state in ThreadState:
        states.add_metric([state.value], float(health.thread is state))
    yield states
    age = "Seconds since the current engine step started; 0 without work."
    yield GaugeMetricFamily("legato_engine_step_age_seconds", age, value=health.step_age_s)
    yield CounterMetricFamily("legato_engine_steps", "Engine steps that finished.", value=health.steps)
    yield CounterMetricFamily("legato_engine_failed_steps", "Engine steps that failed.", value=health.failed_steps)


def _thread_pools(jobs: Mapping[str, int]) -> Iterator[Metric]:
    text = "Jobs that run in or wait for a thread, by kind of work."
    pools = GaugeMetricFamily("legato_pool_jobs", text, labels=["pool"])
    for pool, count in jobs.items():
        pools.add_metric([pool], count)
    yield pools


def _gauges(snapshot: EngineSnapshot) -> Iterator[Metric]:
    active = snapshot.codec_slots.slots - snapshot.codec_slots.free
    yield GaugeMetricFamily("legato_streams_active", "Streams that hold a codec slot.", value=active)
    queued = max(0, snapshot.streams_open - active)
    yield GaugeMetricFamily("legato_streams_queued", "Streams waiting for text or for a slot.", value=queued)
    text = "Streams that lost their slots to others, while their clients sent no text or took no audio."
    yield GaugeMetricFamily("legato_streams_parked", text, value=snapshot.streams_parked)
    yield CounterMetricFamily("legato_parks", "Times that a stream lost its slots to others.", value=snapshot.parks)
    slots = GaugeMetricFamily("legato_pool_slots", "Slots by pool and state.", labels=["pool", "state"])
    for name, pool in (("talker", snapshot.talker_slots), ("codec", snapshot.codec_slots)):
        slots.add_metric([name, "free"], pool.free)
        slots.add_metric([name, "used"], pool.slots - pool.free)
    yield slots


def _counters(snapshot: EngineSnapshot) -> Iterator[Metric]:
    outcomes = CounterMetricFamily("legato_streams", "Finished streams by finish reason.", labels=["finish_reason"])
    for reason, count in snapshot.outcomes.items():
        outcomes.add_metric([reason], count)
    yield outcomes
    errors = CounterMetricFamily("legato_stream_errors", "Failed streams by error code.", labels=["code"])
    for code, count in snapshot.errors.items():
        errors.add_metric([code], count)
    yield errors
    for name, text, value in (
        ("legato_frames", "Generated frames (80 ms each).", snapshot.frames),
        ("legato_audio_seconds", "Seconds of audio generated by finished streams.", snapshot.audio_s),
        ("legato_text_wait_seconds", "Seconds that streams waited for text from the client.", snapshot.text_wait_s),
        ("legato_underruns", "Packets generated after all earlier audio had played out.", snapshot.underruns),
        ("legato_underrun_seconds", "Total delay of these packets in seconds.", snapshot.underrun_s),
    ):
        yield CounterMetricFamily(name, text, value=value)


def _histograms(snapshot: EngineSnapshot) -> Iterator[Metric]:
    for name, text, label, values in (
        ("legato_stage_seconds", "Seconds per stage up to the first packet.", "stage", snapshot.stages_s),
        ("legato_rows", "Batch rows per model part and engine step.", "part", snapshot.rows),
        ("legato_busy_seconds", "Compute seconds per model part and engine step.", "part", snapshot.busy_s),
    ):
        family = HistogramMetricFamily(name, text, labels=[label])
        for key, value in values.items():
            family.add_metric([key], _buckets(value), sum_value=value.total)
        yield family
    for name, text, value in (
        (
            "legato_first_packet_seconds",
            "Seconds from the request to the PCM of the first packet on the host.",
            snapshot.first_packet_s,
        ),
        (
            "legato_gapless_first_audio_seconds",
            "Seconds from the request to the earliest start of playback that has no gap.",
            snapshot.gapless_s,
        ),
        ("legato_packet_gap_seconds", "Seconds between consecutive packets of a stream.", snapshot.packet_gap_s),
        (
            "legato_real_time_factor",
            "Real-time factor: compute seconds per second of audio.",
            snapshot.real_time_factor,
        ),
    ):
        yield HistogramMetricFamily(name, text, buckets=_buckets(value), sum_value=value.total)


def _buckets(value: HistogramValue) -> list[tuple[str, float]]:
    """Cumulative buckets, as Prometheus expects them."""
    cumulative, buckets = 0, []
    for bound, count in zip((*value.bounds, float("inf")), value.counts, strict=True):
        cumulative += count
        buckets.append(("+Inf" if bound == float("inf") else str(bound), float(cumulative)))
    return buckets


class Metrics:
    """All metrics of one application."""

    def __init__(self, engines: Mapping[str, EngineSources], limits: Mapping[str, float]) -> None:
        """`engines`: sources of the engine metrics by model id. `limits`: the limits of the server by name."""
        self.registry = CollectorRegistry()
        self.registry.register(EngineCollector(engines))
        limit = Gauge(
            "legato_limit", "Limits of the server, by the name of their setting.", ["limit"], registry=self.registry
        )
        for name, value in limits.items():
            limit.labels(name).set(value)
        text = "Requests, utterances and sockets that were refused or ended by a limit."
        self._limits_reached = Counter("legato_limit_reached", text, ["limit"], registry=self.registry)
        text = "Streams of the client that has the most."
        self._client_streams = Gauge("legato_client_streams_max", text, registry=self.registry)
        self._sockets = Gauge("legato_sockets", "Open sockets.", ["route"], registry=self.registry)
        self._requests = Counter(
            "legato_requests",
            "Finished requests by route, outcome and finish reason.",
            ["route", "outcome", "finish_reason"],
            registry=self.registry,
        )
        self._active = Gauge("legato_requests_active", "Requests in progress.", ["route"], registry=self.registry)
        self._encode = Histogram(
            "legato_encode_seconds",
            "Seconds to encode one packet.",
            ["format"],
            buckets=_ENCODE_S,
            registry=self.registry,
        )
        self._send = Histogram(
            "legato_send_seconds",
            "Seconds from the PCM of the first packet on the host to its bytes written to the socket.",
            ["route"],
            buckets=SECONDS,
            registry=self.registry,
        )
        self._playout = Histogram(
            "legato_playout_seconds",
            "Seconds from first bytes to first sound at the client, as reported by clients.",
            buckets=SECONDS,
            registry=self.registry,
        )
        self._first_sound = Histogram(
            "legato_first_sound_seconds",
            "Seconds from the request to first sound at the client, as reported by clients.",
            buckets=SECONDS,
            registry=self.registry,
        )

    def limit_reached(self, name: str) -> None:
        """Count something that the limit `name` refused or ended."""
        self._limits_reached.labels(name).inc()

    def client_streams(self, most: int) -> None:
        """Set the number of streams of the client that has the most."""
        self._client_streams.set(most)

    @contextmanager
    def socket_open(self, route: str) -> Iterator[None]:
        """Count an open socket in this context."""
        with self._sockets.labels(route).track_inprogress():
            yield

    def request_started(self, route: str) -> None:
        """Count a request in progress."""
        self._active.labels(route).inc()

    def request_finished(self, route: str, outcome: str, finish_reason: str) -> None:
        """Count a finished request."""
        self._active.labels(route).dec()
        self._requests.labels(route, outcome, finish_reason).inc()

    def packet_encoded(self, audio_format: str, seconds: float) -> None:
        """Record the encoding time of one packet."""
        self._encode.labels(audio_format).observe(seconds)

    def first_bytes_sent(self, route: str, timing: StreamTiming, now_s: float) -> None:
        """Record that the first bytes of a stream were written to its socket at `now_s` (engine clock)."""
        self._send.labels(route).observe(max(0.0, now_s - timing.marks[Mark.FIRST_PACKET]))

    def playback_reported(self, first_bytes_s: float, first_sound_s: float) -> None:
        """Record a client's report: seconds from its request to the first bytes and to the first sound."""
        self._first_sound.observe(first_sound_s)
        self._playout.observe(max(0.0, first_sound_s - first_bytes_s))

    def text(self) -> bytes:
        """All metrics in Prometheus' text format."""
        return generate_latest(self.registry)
