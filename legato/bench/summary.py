"""Percentiles of records that were made under one setting. Pure; every figure comes from the raw records.

A percentile is always a value that was measured: the smallest that so many percent of the values do not exceed. Means
are kept beside them because means of stages add up, and percentiles do not.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace

from legato.bench.facts import Machine, ModelFacts
from legato.bench.records import ALL_STAGES, Asked, RequestRecord, Sound

PERCENTS = (50, 90, 99)


def percentile(values: Sequence[float], percent: int) -> float:
    """By nearest rank. `values` must not be empty."""
    ranked = sorted(values)
    return ranked[max(0, -(-percent * len(ranked) // 100) - 1)]


@dataclass(frozen=True, slots=True)
class Spread:
    """Some values of one kind. All 0 where `count` is."""

    count: int
    mean: float
    least: float
    p50: float
    p90: float
    p99: float
    most: float


def spread(values: Iterable[float]) -> Spread:
    """What there is to say about `values`."""
    given = list(values)
    if not given:
        return Spread(0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
    p50, p90, p99 = (percentile(given, percent) for percent in PERCENTS)
    return Spread(len(given), sum(given) / len(given), min(given), p50, p90, p99, max(given))


@dataclass(frozen=True, slots=True)
class Case:
    """One setting: machine, model and request, without what differs from request to request."""

    machine: Machine
    model: ModelFacts
    asked: Asked


@dataclass(frozen=True, slots=True)
class Summary:
    """What the records of one case say. Times in milliseconds.

    `kept`: streams whose listener never ran dry, of `spoken`. `audio_s_per_s`: sound made in a second, all streams
    together, from the first request of the case to the last sound.
    """

    case: Case
    asked: int
    spoken: int
    refused: int
    failed: int
    stages_ms: dict[str, Spread]
    unaccounted_ms: Spread
    first_packet_ms: Spread
    lm_ms: Spread
    codec_ms: Spread
    first_sound_ms: Spread
    first_audible_ms: Spread
    leading_silence_ms: Spread
    gaps_ms: Spread
    frame_ms: Spread
    real_time_factor: Spread
    audio_s: Spread
    input_characters: Spread
    input_tokens: Spread
    kept: int
    underruns: int
    underrun_ms: float
    audio_s_per_s: float
    batch_rows: float
    peak_bytes: int


def case_of(record: RequestRecord) -> Case:
    """The setting of a record. Whether a reference was encoded inside belongs to it; which text it was does not."""
    return Case(record.machine, record.model, replace(record.asked, number=0, run=0, seed=0, input_characters=0))


def summaries(records: Iterable[RequestRecord]) -> list[Summary]:
    """One for each case, in the order in which they first appear."""
    cases: dict[Case, list[RequestRecord]] = {}
    for record in records:
        cases.setdefault(case_of(record), []).append(record)
    return [summary(case, of_case) for case, of_case in cases.items()]


def summary(case: Case, records: Sequence[RequestRecord]) -> Summary:
    """The figures of one case."""
    sounds = [sound for record in records for sound in record.sounds]
    rate_hz = case.model.sample_rate_hz
    return Summary(
        case=case,
        asked=len(records),
        spoken=len(sounds),
        refused=sum(record.outcome == "refused" for record in records),
        failed=sum(record.outcome in ("failed", "empty") for record in records),
        stages_ms={name: spread(each.stages_ms.get(name, 0.0) for each in sounds) for name in ALL_STAGES},
        unaccounted_ms=spread(each.unaccounted_ms for each in sounds),
        first_packet_ms=spread(each.first_packet_ms for each in sounds),
        lm_ms=spread(each.lm_ms for each in sounds),
        codec_ms=spread(each.codec_ms for each in sounds),
        first_sound_ms=spread(each.first_sound_ms for each in sounds),
        first_audible_ms=spread(each.first_audible_ms for each in sounds),
        leading_silence_ms=spread(each.leading_silence_ms for each in sounds),
        gaps_ms=spread(gap for each in sounds for gap in each.gaps_ms),
        frame_ms=spread(spent for each in sounds for spent in each.frame_ms),
        real_time_factor=spread(each.real_time_factor for each in sounds),
        audio_s=spread(each.samples / rate_hz for each in sounds),
        input_characters=spread(float(record.asked.input_characters) for record in records),
        input_tokens=spread(float(each.input_tokens) for each in sounds),
        kept=sum(not each.underruns for each in sounds),
        underruns=sum(each.underruns for each in sounds),
        underrun_ms=sum(each.underrun_ms for each in sounds),
        audio_s_per_s=_throughput(records, rate_hz),
        batch_rows=spread(record.batch_rows for record in records).mean,
        peak_bytes=max(record.peak_bytes for record in records),
    )


def _throughput(records: Sequence[RequestRecord], rate_hz: int) -> float:
    """Sound made a second in each run, the mean over the runs; requests that came one by one do not overlap."""
    rates: list[float] = []
    for run in {record.asked.run for record in records}:
        of_run = [record for record in records if record.asked.run == run]
        spans = [(record.at_s, sound) for record in of_run for sound in record.sounds]
        busy_s = _span_s(spans)
        if busy_s:
            rates.append(sum(sound.samples for _, sound in spans) / rate_hz / busy_s)
    return sum(rates) / len(rates) if rates else 0.0


def _span_s(spans: Sequence[tuple[float, Sound]]) -> float:
    if not spans:
        return 0.0
    ends_s = [at_s + sound.arrived_ms[-1] / 1000 for at_s, sound in spans]
    return max(ends_s) - min(at_s for at_s, _ in spans)


def labels(cases: Sequence[Case]) -> list[str]:
    """A short name for each case: what tells it from the others, and how it was asked."""
    told = [_told(case) for case in cases]
    apart = [name for name in told[0] if len({each[name] for each in told}) > 1] if told else []
    names = [name for name in (told[0] if told else {}) if name in apart or name in ("transport", "cold")]
    return [", ".join(each[name] for name in names if each[name]) for each in told]


def _told(case: Case) -> dict[str, str]:
    """Every value of a case as a phrase; "" where it goes without saying."""
    asked = case.asked
    facts = {
        f"{owner}.{field.name}": str(getattr(part, field.name))
        for owner, part in (("machine", case.machine), ("model", case.model))
        for field in fields(part)
    }
    named = {
        "model.name": case.model.name,
        "transport": asked.transport,
        "cold": "cold" if asked.cold else "warm",
        "loop": f"{asked.concurrency} at once" if asked.loop == "closed" else f"{asked.rate_hz:g} a second",
        "pace": f"text at {asked.text_tokens_s:g} tokens/s" if asked.text_tokens_s else "text at once",
        "packets": "packets " + ",".join(map(str, asked.packet_frames)),
        "max_frames": f"at most {asked.max_frames} frames" if asked.max_frames else "whole texts",
        "start_ms": f"plays after {asked.start_ms:g} ms",
        "slots": f"{asked.slots} slots",
        "layout": f"{asked.layout} text",
        "inside": "reference encoded inside" if asked.inside.reference_encoding else "",
    }
    return {**facts, **named}
