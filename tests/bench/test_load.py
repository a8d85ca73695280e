"""Load generation without a model: a closed loop keeps its clients busy, an open loop keeps its arrival times."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field

import numpy as np
import pytest

from legato.bench.measure import (
    Clock,
    LoadPattern,
    Target,
    request_info,
    request_record,
    run_closed_loop,
    run_open_loop,
)
from legato.bench.transports import Response
from legato.bench.workload import Utterance, Workload, arrival_times_s
from legato.server.request_records import RequestRecord as ServerRecord


@dataclass
class FakeTransport:
    """Responds when `barrier` opens; records the number of concurrent requests."""

    barrier: threading.Barrier | None = None
    name: str = "in-process"
    concurrent: list[int] = field(default_factory=list)
    utterances: list[Utterance] = field(default_factory=list)
    _active: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def synthesize(self, utterance: Utterance) -> Response:
        with self._lock:
            self._active += 1
            self.concurrent.append(self._active)
            self.utterances.append(utterance)
        if self.barrier is not None:
            self.barrier.wait(20)
        with self._lock:
            self._active -= 1
        return Response(float(utterance.seed), ())


@pytest.mark.parametrize("clients", [1, 3, 6])
def test_closed_loop_keeps_exactly_its_clients_busy(clients: int) -> None:
    """Each response waits until all clients have sent a request, so fewer clients would deadlock."""
    transport = FakeTransport(threading.Barrier(clients))
    responses = run_closed_loop(transport, Workload(), clients=clients, requests=4 * clients)
    assert max(transport.concurrent) == clients
    assert [response.sent_s for response in responses] == [float(number) for number in range(4 * clients)]
    assert sorted(each.seed for each in transport.utterances) == list(range(4 * clients))


def test_failing_client_fails_the_run() -> None:
    class Broken(FakeTransport):
        def synthesize(self, utterance: Utterance) -> Response:
            raise ValueError(utterance.text)

    with pytest.raises(ValueError, match="Good morning"):
        run_closed_loop(Broken(), Workload(), clients=2, requests=2)


def test_open_loop_keeps_arrival_times_while_requests_are_running() -> None:
    """Only `sleep` advances the clock; no request is finished before all have arrived."""
    now_s, arrived = [100.0], list[float]()

    def sleep(seconds: float) -> None:
        now_s[0] += seconds

    class Recording(FakeTransport):
        def synthesize(self, utterance: Utterance) -> Response:
            response = super().synthesize(utterance)
            arrived.append(float(utterance.seed))
            return response

    transport = Recording(threading.Barrier(8))
    run_open_loop(transport, Workload(seed=3), rate_hz=2.0, requests=8, clock=Clock(lambda: now_s[0], sleep))
    assert max(transport.concurrent) == 8
    assert now_s[0] - 100.0 == pytest.approx(arrival_times_s(2.0, 8, seed=3)[-1])
    assert sorted(arrived) == [3.0 + number for number in range(8)]


@pytest.fixture(scope="module")
def target(tiny_target: Target) -> Target:
    return tiny_target


def test_refused_failed_and_empty_requests_have_no_audio(target: Target) -> None:
    request = request_info(target, Workload(), FakeTransport(), 0, cold=False, pattern=LoadPattern("closed", 1))
    server_record = ServerRecord(id="x", route="x", finish_reason="eos", sample_rate_hz=24_000)
    for response, outcome in (
        (Response(0.0, (), error_code="queue_full"), "refused"),
        (Response(0.0, (), error_code="non_finite"), "failed"),
        (Response(0.0, ((1.0, np.ones(9, np.int16)),), error_code="broken_off"), "failed"),
        (Response(0.0, (), server_record), "empty"),
    ):
        got = request_record(target, request, response, at_s=0.0, batch_rows=0.0)
        assert (got.outcome, got.error_code, got.audio) == (outcome, response.error_code, None)


def test_default_clock_is_the_monotonic_clock_of_engine_and_client() -> None:
    assert Clock().now is time.monotonic
