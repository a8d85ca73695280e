"""Measure requests one by one (latency) or concurrently (load), and build a `RequestRecord` for each.

Client and engine use the same monotonic clock, so a stage may start in one and end in the other. Time that no stage
covers is recorded as unaccounted; it is not distributed over the stages. Each load pattern has its own client threads.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import count

from legato.api import Legato
from legato.bench.environment import Machine, ModelInfo, peak_memory_bytes
from legato.bench.playback import simulate_playback
from legato.bench.records import PLAYOUT, REQUEST, TRANSPORT, AudioMetrics, IncludedWork, RequestInfo, RequestRecord
from legato.bench.transports import HTTP, IN_PROCESS, LAYOUT, Response, Transport
from legato.bench.workload import Workload, arrival_times_s
from legato.engine.stats import EngineSnapshot, Mark, StepPhase
from legato.server.request_records import RequestRecord as ServerRecord

REFUSAL_CODES = ("queue_full", "engine_closed", "not_ready", "rate_limited")
"""Error codes that mean "no capacity". Any other error counts as a failure."""
WARM_UP_FRAMES = 4


@dataclass(frozen=True, slots=True)
class Target:
    """The system under test. `synchronized`: its engine synchronizes the device at the end of each stage."""

    tts: Legato
    machine: Machine
    model_info: ModelInfo
    synchronized: bool
    run: int = 0


@dataclass(frozen=True, slots=True)
class LoadPattern:
    """Arrival of requests: "closed" (from `concurrency` clients) or "open" (`rate_hz` arrivals per second)."""

    loop: str
    concurrency: int = 0
    rate_hz: float = 0.0


ONE_BY_ONE = LoadPattern("closed", concurrency=1)


@dataclass(frozen=True, slots=True)
class Repetitions:
    """`requests` measured per transport, after `warm_up` that are not recorded."""

    requests: int
    warm_up: int = 1


@dataclass(frozen=True, slots=True)
class Clock:
    """Clock that times the arrivals, in seconds."""

    now: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


# --- latency ---------------------------------------------------------------------------------------------------------


def measure_latency(
    target: Target, transports: Sequence[Transport], workload: Workload, repetitions: Repetitions
) -> Iterator[RequestRecord]:
    """Send one request at a time over each transport in turn, and yield their records.

    The first request of the process is recorded as cold. Later warm-up requests, which include the first connection and
    the first use of each batch size, are not recorded.
    """
    cold = True
    for transport in transports:
        started_s: float | None = None  # when the first recorded warm request of this transport was sent
        for index in range(-repetitions.warm_up, repetitions.requests):
            number = max(0, index)
            before = target.tts.stats()
            response = transport.synthesize(workload.utterance(number))
            rows = mean_talker_rows(before, target.tts.stats())
            if cold or index >= 0:
                at_s = 0.0
                if not cold:
                    started_s = response.sent_s if started_s is None else started_s
                    at_s = response.sent_s - started_s
                info = request_info(target, workload, transport, number, cold=cold, pattern=ONE_BY_ONE)
                yield request_record(target, info, response, at_s=at_s, batch_rows=rows)
            cold = False


# --- load ------------------------------------------------------------------------------------------------------------


def measure_load(
    target: Target,
    transport: Transport,
    workload: Workload,
    patterns: Sequence[LoadPattern],
    *,
    requests: int,
    clock: Clock,
) -> Iterator[RequestRecord]:
    """Send `requests` requests in each pattern, after a warm-up with a few short requests at the same concurrency."""
    for pattern in patterns:
        concurrency = pattern.concurrency or target.tts.config.max_num_seqs
        warm_up = replace(workload, max_frames=WARM_UP_FRAMES)
        run_closed_loop(transport, warm_up, clients=concurrency, requests=concurrency)
        before, started_s = target.tts.stats(), clock.now()
        if pattern.loop == "closed":
            responses = run_closed_loop(transport, workload, clients=pattern.concurrency, requests=requests)
        else:
            responses = run_open_loop(transport, workload, rate_hz=pattern.rate_hz, requests=requests, clock=clock)
        rows = mean_talker_rows(before, target.tts.stats())
        for number, response in enumerate(responses):
            info = request_info(target, workload, transport, number, cold=False, pattern=pattern)
            yield request_record(target, info, response, at_s=response.sent_s - started_s, batch_rows=rows)


def run_closed_loop(transport: Transport, workload: Workload, *, clients: int, requests: int) -> list[Response]:
    """Each client sends its next request when its last one is finished, until `requests` have been sent in total.

    Responses are in order of request number.
    """
    numbers = count()

    def client(_: int) -> list[tuple[int, Response]]:
        received: list[tuple[int, Response]] = []
        while (number := next(numbers)) < requests:
            received.append((number, transport.synthesize(workload.utterance(number))))
        return received

    with ThreadPoolExecutor(clients, thread_name_prefix="legato-bench-client") as threads:
        received = [each for responses in threads.map(client, range(clients)) for each in responses]
    return [response for _, response in sorted(received, key=lambda each: each[0])]


def run_open_loop(
    transport: Transport, workload: Workload, *, rate_hz: float, requests: int, clock: Clock
) -> list[Response]:
    """Send each request at its arrival time in its own thread, even while earlier ones are still running.

    The latency of an overloaded server therefore grows. Responses are in order of request number.
    """
    started_s = clock.now()

    with ThreadPoolExecutor(requests, thread_name_prefix="legato-bench-client") as threads:
        futures = []
        for number, at_s in enumerate(arrival_times_s(rate_hz, requests, workload.seed)):
            clock.sleep(max(0.0, started_s + at_s - clock.now()))
            futures.append(threads.submit(transport.synthesize, workload.utterance(number)))
        return [future.result() for future in futures]


# --- records ---------------------------------------------------------------------------------------------------------


def request_info(
    target: Target, workload: Workload, transport: Transport, number: int, *, cold: bool, pattern: LoadPattern
) -> RequestInfo:
    """Describe request `number`."""
    utterance = workload.utterance(number)
    return RequestInfo(
        number=number,
        run=target.run,
        seed=utterance.seed,
        cold=cold,
        transport=transport.name,
        loop=pattern.loop,
        concurrency=pattern.concurrency,
        rate_hz=pattern.rate_hz,
        text_tokens_per_s=utterance.text_tokens_per_s,
        input_characters=len(utterance.text),
        layout=LAYOUT.value,
        packet_frames=utterance.packet_frames,
        max_frames=utterance.max_frames,
        prebuffer_ms=workload.prebuffer_ms,
        max_num_seqs=target.tts.config.max_num_seqs,
        included=IncludedWork(
            text_front_end=True,
            # on a WebSocket the reference is sent when the session is configured, before the request
            reference_encoding=bool(utterance.reference) and transport.name in (IN_PROCESS, HTTP),
            device_copies=target.machine.device.startswith("cuda"),
        ),
    )


def request_record(
    target: Target, info: RequestInfo, response: Response, *, at_s: float, batch_rows: float
) -> RequestRecord:
    """Build the record of one response. A response that ended in an error has no audio metrics."""
    complete = response.server_record if response.pieces and not response.error_code else None
    return RequestRecord(
        machine=target.machine,
        model=target.model_info,
        request=info,
        at_s=round(at_s, 6),
        outcome=_outcome_without_audio(response) if complete is None else complete.finish_reason,
        error_code=response.error_code,
        synchronized=target.synchronized,
        batch_rows=round(batch_rows, 3),
        peak_bytes=peak_memory_bytes(target.tts.model),
        audio=None if complete is None else audio_metrics(complete, response, prebuffer_ms=info.prebuffer_ms),
    )


def audio_metrics(server_record: ServerRecord, response: Response, *, prebuffer_ms: float) -> AudioMetrics:
    """Combine the stages of client and engine, and simulate playback at the client."""
    timing = server_record.timing
    assert timing is not None
    playback = simulate_playback(response.pieces, server_record.sample_rate_hz, prebuffer_ms=prebuffer_ms)
    sent_s, arrived_s = response.sent_s, response.pieces[0][0]
    stages_s = {
        REQUEST: timing.marks[Mark.RECEIVED] - sent_s,
        **timing.stages_s(),
        TRANSPORT: arrived_s - timing.marks[Mark.FIRST_PACKET],
        PLAYOUT: playback.start_s - arrived_s,
    }
    first_sound_s = playback.start_s - sent_s
    piece_samples = tuple(len(samples) for _, samples in response.pieces)
    return AudioMetrics(
        input_tokens=server_record.input_tokens,
        frames=server_record.frames,
        samples=sum(piece_samples),
        stages_ms={name: _ms(stage_s) for name, stage_s in stages_s.items()},
        unaccounted_ms=_ms(first_sound_s - sum(stages_s.values())),
        first_packet_ms=_ms(timing.first_packet_s),
        first_sound_ms=_ms(first_sound_s),
        first_audible_ms=_ms(playback.audible_s - sent_s),
        leading_silence_ms=_ms(playback.silence_s),
        text_stall_ms=_ms(timing.text_stall_s),
        arrived_ms=tuple(_ms(at_s - sent_s) for at_s, _ in response.pieces),
        piece_samples=piece_samples,
        underruns=playback.underruns,
        underrun_ms=_ms(playback.underrun_s),
        real_time_factor=round(timing.real_time_factor() or 0.0, 4),
    )


def mean_talker_rows(before: EngineSnapshot, after: EngineSnapshot) -> float:
    """Mean batch size of the talker's calls between two snapshots; 0 without calls."""
    name = StepPhase.TALKER.value
    calls = after.rows[name].count - before.rows[name].count
    return (after.rows[name].total - before.rows[name].total) / calls if calls else 0.0


def _outcome_without_audio(response: Response) -> str:
    if not response.error_code:
        return "empty"
    return "refused" if response.error_code in REFUSAL_CODES else "failed"


def _ms(seconds: float) -> float:
    return round(1000 * seconds, 3)
