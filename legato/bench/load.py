"""Load: many clients at once, as a closed loop of so many clients or as arrivals at a rate, reproducible by their seed.

A closed loop shows what so many patient clients get. An open loop goes on asking whoever is still busy, so that a
server that falls behind is seen to. Each client is a thread that mostly waits. Owns its threads for one setting.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import count

from legato.bench.observe import Setting, Subject, asked_of, record_of, talker_rows
from legato.bench.records import RequestRecord
from legato.bench.ways import Answer, Way
from legato.bench.workload import Workload, arrivals_s

WARM_UP_FRAMES = 4


@dataclass(frozen=True, slots=True)
class Clock:
    """Time as the arrivals need it: both in seconds."""

    now: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


def measure_load(
    subject: Subject,
    way: Way,
    workload: Workload,
    settings: Sequence[Setting],
    *,
    requests: int,
    clock: Clock,
) -> Iterator[RequestRecord]:
    """`requests` of each setting, after a few short ones at the same width that do not count."""
    for setting in settings:
        width = setting.concurrency or subject.tts.config.streams
        closed_loop(way, replace(workload, max_frames=WARM_UP_FRAMES), clients=width, requests=width)
        before, began_s = subject.tts.stats(), clock.now()
        if setting.loop == "closed":
            answers = closed_loop(way, workload, clients=setting.concurrency, requests=requests)
        else:
            answers = open_loop(way, workload, rate_hz=setting.rate_hz, requests=requests, clock=clock)
        rows = talker_rows(before, subject.tts.stats())
        for number, answer in enumerate(answers):
            asked = asked_of(subject, workload, way, number, cold=False, setting=setting)
            yield record_of(subject, asked, answer, at_s=answer.asked_s - began_s, batch_rows=rows)


def closed_loop(way: Way, workload: Workload, *, clients: int, requests: int) -> list[Answer]:
    """Each client asks as soon as it was answered, until `requests` were asked in all. Answers by number."""
    numbers = count()

    def client(_: int) -> list[tuple[int, Answer]]:
        answered: list[tuple[int, Answer]] = []
        while (number := next(numbers)) < requests:
            answered.append((number, way.speak(workload.utterance(number))))
        return answered

    with ThreadPoolExecutor(clients, thread_name_prefix="legato-bench-client") as threads:
        answered = [each for answers in threads.map(client, range(clients)) for each in answers]
    return [answer for _, answer in sorted(answered, key=lambda each: each[0])]


def open_loop(way: Way, workload: Workload, *, rate_hz: float, requests: int, clock: Clock) -> list[Answer]:
    """Clients come when they come, each in a thread of its own. Answers by number."""
    began_s = clock.now()

    with ThreadPoolExecutor(requests, thread_name_prefix="legato-bench-client") as threads:
        asked = []
        for number, at_s in enumerate(arrivals_s(rate_hz, requests, workload.seed)):
            clock.sleep(max(0.0, began_s + at_s - clock.now()))
            asked.append(threads.submit(way.speak, workload.utterance(number)))
        return [each.result() for each in asked]
