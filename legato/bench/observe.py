"""From what a client saw and what the engine marked to a record: the stages, laid end to end.

Client and engine read one monotonic clock, so a stage may begin at one and end at the other. What the stages leave of
the way to the first sound is kept as unaccounted, never spread over them. Owns nothing; reads no clock.
"""

from __future__ import annotations

from dataclasses import dataclass

from legato.api import Legato
from legato.bench.device import peak_bytes
from legato.bench.facts import Machine, ModelFacts
from legato.bench.listener import hear
from legato.bench.records import PLAYOUT, REQUEST, TRANSPORT, Asked, Inside, RequestRecord, Sound
from legato.bench.ways import HTTP, IN_PROCESS, LAYOUT, Answer, Way
from legato.bench.workload import Workload
from legato.engine.stats import EngineSnapshot, Mark, Part
from legato.server.records import RequestRecord as Account

REFUSALS = ("queue_full", "engine_closed", "not_ready", "rate_limited")
"""Codes of a server that has no room. Any other error is a failure."""


@dataclass(frozen=True, slots=True)
class Subject:
    """What is measured, and what every record of it says. `settled`: the engine waits for its device at each stage."""

    tts: Legato
    machine: Machine
    facts: ModelFacts
    settled: bool
    run: int = 0


@dataclass(frozen=True, slots=True)
class Setting:
    """How requests come: "closed", `concurrency` clients; or "open", `rate_hz` arrivals a second."""

    loop: str
    concurrency: int = 0
    rate_hz: float = 0.0


def asked_of(subject: Subject, workload: Workload, way: Way, number: int, *, cold: bool, setting: Setting) -> Asked:
    """What request `number` is."""
    utterance = workload.utterance(number)
    cuda = subject.machine.device.startswith("cuda")
    return Asked(
        number=number,
        run=subject.run,
        seed=utterance.seed,
        cold=cold,
        transport=way.name,
        loop=setting.loop,
        concurrency=setting.concurrency,
        rate_hz=setting.rate_hz,
        text_tokens_s=utterance.text_tokens_s,
        input_characters=len(utterance.text),
        layout=LAYOUT.value,
        packet_frames=utterance.packet_frames,
        max_frames=utterance.max_frames,
        start_ms=workload.start_ms,
        slots=subject.tts.config.streams,
        inside=Inside(
            text_front_end=True,
            reference_encoding=bool(utterance.reference) and way.name in (IN_PROCESS, HTTP),
            device_copies=cuda,
        ),
    )


def record_of(subject: Subject, asked: Asked, answer: Answer, *, at_s: float, batch_rows: float) -> RequestRecord:
    """The record of one answer."""
    spoken = answer.accounts if answer.pieces and not answer.error_code else ()
    return RequestRecord(
        machine=subject.machine,
        model=subject.facts,
        asked=asked,
        at_s=round(at_s, 6),
        outcome=spoken[0].finish_reason if spoken else _without_sound(answer),
        error_code=answer.error_code,
        settled=subject.settled,
        batch_rows=round(batch_rows, 3),
        peak_bytes=peak_bytes(subject.tts.model),
        sounds=tuple(sound_of(each, answer, start_ms=asked.start_ms) for each in spoken),
    )


def sound_of(account: Account, answer: Answer, *, start_ms: float) -> Sound:
    """Stages end to end, and what the listener heard."""
    timing = account.timings[0]
    hearing = hear(answer.pieces, account.sample_rate_hz, start_ms=start_ms)
    asked_s, arrived_s = answer.asked_s, answer.pieces[0][0]
    stages_s = {
        REQUEST: timing.marks[Mark.RECEIVED] - asked_s,
        **timing.stages_s(),
        TRANSPORT: arrived_s - timing.marks[Mark.FIRST_PACKET],
        PLAYOUT: hearing.start_s - arrived_s,
    }
    first_sound_s = hearing.start_s - asked_s
    piece_samples = tuple(len(samples) for _, samples in answer.pieces)
    return Sound(
        input_tokens=account.input_tokens,
        frames=account.frames,
        samples=sum(piece_samples),
        stages_ms={name: _ms(spent_s) for name, spent_s in stages_s.items()},
        unaccounted_ms=_ms(first_sound_s - sum(stages_s.values())),
        first_packet_ms=_ms(timing.first_packet_s),
        first_sound_ms=_ms(first_sound_s),
        first_audible_ms=_ms(hearing.audible_s - asked_s),
        leading_silence_ms=_ms(hearing.silence_s),
        later_text_wait_ms=_ms(timing.later_text_wait_s),
        arrived_ms=tuple(_ms(at_s - asked_s) for at_s, _ in answer.pieces),
        piece_samples=piece_samples,
        underruns=hearing.underruns,
        underrun_ms=_ms(hearing.underrun_s),
        real_time_factor=round(timing.real_time_factors()[0], 4),
    )


def _without_sound(answer: Answer) -> str:
    if not answer.error_code:
        return "empty"
    return "refused" if answer.error_code in REFUSALS else "failed"


def talker_rows(before: EngineSnapshot, after: EngineSnapshot) -> float:
    """Mean rows of the talker's calls between two snapshots; 0 where it made none."""
    name = Part.TALKER.value
    calls = after.rows[name].count - before.rows[name].count
    return (after.rows[name].total - before.rows[name].total) / calls if calls else 0.0


def _ms(seconds: float) -> float:
    return round(1000 * seconds, 3)
