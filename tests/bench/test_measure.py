"""Measure a tiny model over all transports. Checks that the figures are consistent; speed is not judged."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from legato.bench.measure import Clock, LoadPattern, Repetitions, Target, audio_metrics, measure_latency, measure_load
from legato.bench.records import ALL_STAGES, AudioMetrics, RequestRecord
from legato.bench.summary import summaries
from legato.bench.transports import (
    HttpTransport,
    InProcessTransport,
    Response,
    Transport,
    WebSocketTransport,
    serve_locally,
)
from legato.bench.workload import Workload
from legato.engine.stats import Mark, StreamTiming
from legato.errors import InputError
from legato.server.request_records import RequestRecord as ServerRecord

FRAMES = 6
WORKLOAD = Workload(packet_frames=(1, 2), max_frames=FRAMES)
TRANSPORTS = ("in-process", "http", "websocket")


@pytest.fixture(scope="module")
def transports(tiny_target: Target) -> Iterator[dict[str, Transport]]:
    with serve_locally(tiny_target.tts) as server:
        found: tuple[Transport, ...] = (
            InProcessTransport(tiny_target.tts),
            HttpTransport(server.url, server.server_record),
            WebSocketTransport(server.url, server.server_record),
        )
        yield {transport.name: transport for transport in found}


@pytest.fixture(scope="module")
def latency(tiny_target: Target, transports: dict[str, Transport]) -> list[RequestRecord]:
    return list(measure_latency(tiny_target, list(transports.values()), WORKLOAD, Repetitions(2, warm_up=1)))


def served(record: RequestRecord) -> AudioMetrics:
    assert record.audio is not None
    return record.audio


def test_transports_get_equal_requests_and_the_first_is_cold(latency: list[RequestRecord]) -> None:
    sent = [(record.request.transport, record.request.number, record.request.cold) for record in latency]
    assert sent == [
        ("in-process", 0, True),
        *((transport, number, False) for transport in TRANSPORTS for number in (0, 1)),
    ]
    assert {record.outcome for record in latency} == {"max_frames"}
    for number in (0, 1):
        requests = [record.request for record in latency if record.request.number == number]
        assert len({(each.seed, each.input_characters, each.layout, each.packet_frames) for each in requests}) == 1
    tokens = {(record.request.number, served(record).input_tokens) for record in latency}
    assert len(tokens) == 2
    assert all(count > 0 for _, count in tokens)


def test_stages_are_contiguous_and_leave_nothing_unaccounted(latency: list[RequestRecord]) -> None:
    for record in latency:
        audio = served(record)
        assert tuple(audio.stages_ms) == ALL_STAGES
        assert all(stage_ms >= 0 for stage_ms in audio.stages_ms.values())
        assert abs(audio.unaccounted_ms) <= 0.01
        assert (audio.frames, audio.samples) == (FRAMES, FRAMES * record.model.frame_samples)
        assert audio.first_packet_ms < audio.first_sound_ms <= audio.first_audible_ms
        assert audio.arrived_ms[0] == pytest.approx(audio.first_sound_ms)
        assert all(earlier <= later for earlier, later in pairwise(audio.arrived_ms))
        assert audio.real_time_factor > 0
        assert record.batch_rows == 1.0


def test_client_buffering_is_counted_as_playout(tiny_target: Target, transports: dict[str, Transport]) -> None:
    workload = replace(WORKLOAD, prebuffer_ms=200.0)
    *_, record = measure_latency(tiny_target, [transports["websocket"]], workload, Repetitions(1))
    audio = served(record)
    assert audio.stages_ms["playout"] == pytest.approx(audio.first_sound_ms - audio.arrived_ms[0], abs=0.01)
    assert audio.stages_ms["playout"] > 0
    assert abs(audio.unaccounted_ms) <= 0.01


@pytest.mark.parametrize("name", ["in-process", "websocket"])
def test_slow_text_counts_as_input_wait(name: str, tiny_target: Target, transports: dict[str, Transport]) -> None:
    """A word is spoken when it is complete: nine pieces at twenty per second."""
    workload = replace(WORKLOAD, texts=("Donaudampfschifffahrtsgesellschaft fahren.",), text_tokens_per_s=20.0)
    *_, record = measure_latency(tiny_target, [transports[name]], workload, Repetitions(1))
    audio = served(record)
    assert record.request.text_tokens_per_s == 20.0
    assert audio.stages_ms["input wait"] > 300


def test_http_rejects_text_at_a_rate(transports: dict[str, Transport]) -> None:
    with pytest.raises(InputError, match="does not support --text-rate"):
        transports["http"].synthesize(replace(WORKLOAD, text_tokens_per_s=10.0).utterance(0))


@pytest.mark.parametrize("name", TRANSPORTS)
def test_load_counts_refused_requests(name: str, tiny_target: Target, transports: dict[str, Transport]) -> None:
    """Six simultaneous clients for two streams and one queued: the rest is refused, and nothing else fails."""
    patterns = [LoadPattern("closed", concurrency=2), LoadPattern("open", rate_hz=1000.0)]
    workload = replace(WORKLOAD, max_frames=20)
    records = list(measure_load(tiny_target, transports[name], workload, patterns, requests=6, clock=Clock()))
    light, overload = summaries(records)
    assert (light.requests, light.completed, light.refused) == (6, 6, 0)
    assert 1.0 <= light.batch_rows <= 2.0
    assert (overload.requests, overload.failed) == (6, 0)
    assert overload.completed >= 3
    assert overload.refused == 6 - overload.completed
    assert overload.refused > 0
    assert {record.error_code for record in records if record.audio is None} == {"queue_full"}
    assert light.audio_s_per_s > 0
    assert light.peak_bytes > 0


def test_first_audible_sample_follows_the_leading_silence() -> None:
    """300 ms of silence in pieces of 200 ms that arrive at 1.0 and 1.1 s; the request was sent at 0.4 s."""
    rate_hz = 24_000
    timing = StreamTiming()
    for number, mark in enumerate(Mark):
        timing.mark(mark, 0.5 + number / 100)
    timing.audio_s = 0.4
    samples = np.zeros(9600, np.int16)
    samples[7200:] = 8000
    record = ServerRecord(id="", route="", input_tokens=3, frames=5, sample_rate_hz=rate_hz, timing=timing)
    response = Response(sent_s=0.4, pieces=((1.0, samples[:4800]), (1.1, samples[4800:])), server_record=record)
    for prebuffer_ms, start_s in ((0.0, 1.0), (300.0, 1.1)):
        audio = audio_metrics(record, response, prebuffer_ms=prebuffer_ms)
        assert audio.first_sound_ms == pytest.approx(1000 * (start_s - 0.4), abs=0.01)
        assert audio.leading_silence_ms == pytest.approx(300)
        assert audio.first_audible_ms == pytest.approx(audio.first_sound_ms + 300, abs=0.01)
        assert audio.arrived_ms == (600.0, 700.0)
        assert audio.samples == 9600
