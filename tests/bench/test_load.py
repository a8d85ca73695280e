"""Who asks when, without a model: a closed loop keeps so many clients busy, arrivals keep to their times."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field

import numpy as np
import pytest

from legato.bench.load import Clock, closed_loop, open_loop
from legato.bench.observe import Setting, Subject, asked_of, record_of
from legato.bench.ways import Answer
from legato.bench.workload import Utterance, Workload, arrivals_s
from legato.server.records import RequestRecord as Account


@dataclass
class FakeWay:
    """Answers when `hold` lets it; remembers who was there together."""

    hold: threading.Barrier | None = None
    name: str = "in-process"
    together: list[int] = field(default_factory=list)
    asked: list[Utterance] = field(default_factory=list)
    _here: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def speak(self, utterance: Utterance) -> Answer:
        with self._lock:
            self._here += 1
            self.together.append(self._here)
            self.asked.append(utterance)
        if self.hold is not None:
            self.hold.wait(20)
        with self._lock:
            self._here -= 1
        return Answer(float(utterance.seed), ())


@pytest.mark.parametrize("clients", [1, 3, 6])
def test_a_closed_loop_keeps_so_many_clients_busy_and_no_more(clients: int) -> None:
    """Each answer waits until all clients have asked, so fewer at once would never end."""
    way = FakeWay(threading.Barrier(clients))
    answers = closed_loop(way, Workload(), clients=clients, requests=4 * clients)
    assert max(way.together) == clients
    assert [answer.asked_s for answer in answers] == [float(number) for number in range(4 * clients)]
    assert sorted(each.seed for each in way.asked) == list(range(4 * clients))


def test_a_client_that_fails_fails_the_run() -> None:
    class Broken(FakeWay):
        def speak(self, utterance: Utterance) -> Answer:
            raise ValueError(utterance.text)

    with pytest.raises(ValueError, match="Good morning"):
        closed_loop(Broken(), Workload(), clients=2, requests=2)


def test_arrivals_keep_to_their_times_however_long_the_others_take() -> None:
    """On a clock that only sleeping moves; nobody is answered before all have come."""
    now_s, came_s = [100.0], list[float]()

    def sleep(seconds: float) -> None:
        now_s[0] += seconds

    class Watched(FakeWay):
        def speak(self, utterance: Utterance) -> Answer:
            answer = super().speak(utterance)
            came_s.append(float(utterance.seed))
            return answer

    way = Watched(threading.Barrier(8))
    open_loop(way, Workload(seed=3), rate_hz=2.0, requests=8, clock=Clock(lambda: now_s[0], sleep))
    assert max(way.together) == 8
    assert now_s[0] - 100.0 == pytest.approx(arrivals_s(2.0, 8, seed=3)[-1])
    assert sorted(came_s) == [3.0 + number for number in range(8)]


@pytest.fixture(scope="module")
def subject(tiny_subject: Subject) -> Subject:
    return tiny_subject


def test_refusals_failures_and_empty_answers_are_records_without_sound(subject: Subject) -> None:
    asked = asked_of(subject, Workload(), FakeWay(), 0, cold=False, setting=Setting("closed", 1))
    account = Account(id="x", route="x", finish_reason="eos", sample_rate_hz=24_000)
    for answer, outcome in (
        (Answer(0.0, (), error_code="queue_full"), "refused"),
        (Answer(0.0, (), error_code="non_finite"), "failed"),
        (Answer(0.0, ((1.0, np.ones(9, np.int16)),), error_code="broken_off"), "failed"),
        (Answer(0.0, (), (account,)), "empty"),
    ):
        got = record_of(subject, asked, answer, at_s=0.0, batch_rows=0.0)
        assert (got.outcome, got.error_code, got.sounds) == (outcome, answer.error_code, ())


def test_the_default_clock_is_the_one_that_engine_and_clients_read() -> None:
    assert Clock().now is time.monotonic
