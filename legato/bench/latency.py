"""Latency: one request after the other, over each way in turn, each with the record of its stages.

The first request of a process is recorded as cold; what a way needs once (a first connection, a first size of a batch)
is then left to requests that are not recorded. Owns nothing; the ways and the clock are the caller's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from legato.bench.observe import Setting, Subject, asked_of, record_of, talker_rows
from legato.bench.records import RequestRecord
from legato.bench.ways import Way
from legato.bench.workload import Workload

ONE_BY_ONE = Setting("closed", concurrency=1)


@dataclass(frozen=True, slots=True)
class Repetitions:
    """`requests` that count for each way, after `warm_up` that do not."""

    requests: int
    warm_up: int = 1


def measure_latency(
    subject: Subject, ways: Sequence[Way], workload: Workload, repetitions: Repetitions
) -> Iterator[RequestRecord]:
    """Records as they come, the cold one first."""
    cold = True
    for way in ways:
        began_s: list[float] = []
        for turn in range(-repetitions.warm_up, repetitions.requests):
            number = max(0, turn)
            before = subject.tts.stats()
            answer = way.speak(workload.utterance(number))
            rows = talker_rows(before, subject.tts.stats())
            if cold or turn >= 0:
                began_s += [] if cold or began_s else [answer.asked_s]
                asked = asked_of(subject, workload, way, number, cold=cold, setting=ONE_BY_ONE)
                yield record_of(
                    subject, asked, answer, at_s=0.0 if cold else answer.asked_s - began_s[0], batch_rows=rows
                )
            cold = False
