"""What Prometheus reads: the engine's own sums, and the server's requests. One registry for each application.

Owns the server's counters. The engine's figures are not counted twice: they are taken from its snapshot whenever
somebody asks. Knows no request's content.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from legato.engine.histogram import SECONDS, HistogramValue
from legato.engine.stats import EngineSnapshot, Mark, StreamTiming

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_ENCODE_S = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5)


class EngineCollector(Collector):
    """The engine's snapshot as metrics."""

    def __init__(self, snapshot: Callable[[], EngineSnapshot]) -> None:
        self._snapshot = snapshot

    def collect(self) -> Iterator[Metric]:
        """Called by the registry for every scrape."""
        now = self._snapshot()
        yield from _gauges(now)
        yield from _counters(now)
        yield from _histograms(now)


def _gauges(now: EngineSnapshot) -> Iterator[Metric]:
    speaking = now.codec_slots.slots - now.codec_slots.free
    yield GaugeMetricFamily("legato_streams_active", "Streams that hold a codec slot.", value=speaking)
    queued = max(0, now.streams_open - speaking)
    yield GaugeMetricFamily("legato_streams_queued", "Streams that wait for text or for a slot.", value=queued)
    slots = GaugeMetricFamily("legato_pool_slots", "Slots of a pool.", labels=["pool", "state"])
    for name, pool in (("talker", now.talker_slots), ("codec", now.codec_slots)):
        slots.add_metric([name, "free"], pool.free)
        slots.add_metric([name, "used"], pool.slots - pool.free)
    yield slots


def _counters(now: EngineSnapshot) -> Iterator[Metric]:
    outcomes = CounterMetricFamily("legato_streams", "Streams that ended, by finish reason.", labels=["finish_reason"])
    for reason, count in now.outcomes.items():
        outcomes.add_metric([reason], count)
    yield outcomes
    errors = CounterMetricFamily("legato_stream_errors", "Streams that failed, by the error's code.", labels=["code"])
    for code, count in now.errors.items():
        errors.add_metric([code], count)
    yield errors
    for name, text, value in (
        ("legato_frames", "Frames of 80 ms that were made.", now.frames),
        ("legato_audio_seconds", "Seconds of speech of streams that ended.", now.audio_s),
        ("legato_text_wait_seconds", "Seconds that streams waited for their clients' text.", now.text_wait_s),
        ("legato_underruns", "Packets later than the end of what was sent before them.", now.underruns),
        ("legato_underrun_seconds", "Seconds by which they were late.", now.underrun_s),
    ):
        yield CounterMetricFamily(name, text, value=value)


def _histograms(now: EngineSnapshot) -> Iterator[Metric]:
    for name, text, label, values in (
        ("legato_stage_seconds", "Seconds of each stage up to the first packet.", "stage", now.stages_s),
        ("legato_rows", "Rows that a part computed in one turn.", "part", now.rows),
        ("legato_busy_seconds", "Seconds that a part computed in one turn.", "part", now.busy_s),
    ):
        family = HistogramMetricFamily(name, text, labels=[label])
        for key, value in values.items():
            family.add_metric([key], _buckets(value), sum_value=value.total)
        yield family
    for name, text, value in (
        ("legato_first_packet_seconds", "Request to PCM of the first packet on the host.", now.first_packet_s),
        ("legato_packet_gap_seconds", "Between packets of one stream.", now.packet_gap_s),
        ("legato_real_time_factor", "Seconds of work for a second of speech.", now.real_time_factor),
    ):
        yield HistogramMetricFamily(name, text, buckets=_buckets(value), sum_value=value.total)


def _buckets(value: HistogramValue) -> list[tuple[str, float]]:
    """Prometheus' cumulative buckets."""
    cumulative, buckets = 0, []
    for bound, count in zip((*value.bounds, float("inf")), value.counts, strict=True):
        cumulative += count
        buckets.append(("+Inf" if bound == float("inf") else str(bound), float(cumulative)))
    return buckets


class Metrics:
    """The server's own counters beside the engine's."""

    def __init__(self, snapshot: Callable[[], EngineSnapshot]) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(EngineCollector(snapshot))
        self._requests = Counter(
            "legato_requests",
            "Requests that ended, by route, outcome and finish reason.",
            ["route", "outcome", "finish_reason"],
            registry=self.registry,
        )
        self._active = Gauge("legato_requests_active", "Requests under way.", ["route"], registry=self.registry)
        self._encode = Histogram(
            "legato_encode_seconds",
            "Encoding of one packet.",
            ["format"],
            buckets=_ENCODE_S,
            registry=self.registry,
        )

        self._send = Histogram(
            "legato_send_seconds",
            "PCM of the first packet on the host to its bytes handed to the socket.",
            ["route"],
            buckets=SECONDS,
            registry=self.registry,
        )
        self._playout = Histogram(
            "legato_playout_seconds",
            "First bytes at the client to its first sound, where clients tell.",
            buckets=SECONDS,
            registry=self.registry,
        )
        self._first_sound = Histogram(
            "legato_first_sound_seconds",
            "Request to first sound at the client, where clients tell.",
            buckets=SECONDS,
            registry=self.registry,
        )

    def began(self, route: str) -> None:
        """A request is under way."""
        self._active.labels(route).inc()

    def ended(self, route: str, outcome: str, finish_reason: str) -> None:
        """It is over."""
        self._active.labels(route).dec()
        self._requests.labels(route, outcome, finish_reason).inc()

    def encoded(self, audio_format: str, seconds: float) -> None:
        """A packet was encoded."""
        self._encode.labels(audio_format).observe(seconds)

    def sent(self, route: str, timing: StreamTiming, now_s: float) -> None:
        """The first bytes of a stream were handed to its socket, at `now_s` of the engine's clock."""
        self._send.labels(route).observe(max(0.0, now_s - timing.marks[Mark.FIRST_PACKET]))

    def heard(self, first_bytes_s: float, first_sound_s: float) -> None:
        """A client told when, since it asked, its first bytes were there and its first sound was played."""
        self._first_sound.observe(first_sound_s)
        self._playout.observe(max(0.0, first_sound_s - first_bytes_s))

    def text(self) -> bytes:
        """Everything, in Prometheus' text format."""
        return generate_latest(self.registry)
