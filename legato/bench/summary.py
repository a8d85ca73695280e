"""Summaries of request records: percentiles, throughput and counts for each case. Pure functions.

Percentiles use the nearest rank, so they are always measured values. Means are reported too, because means of stages
add up and percentiles do not.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace

from legato.bench.environment import Machine, ModelInfo
from legato.bench.records import ALL_STAGES, AudioMetrics, RequestInfo, RequestRecord

PERCENTS = (50, 90, 99)


def percentile(values: Sequence[float], percent: int) -> float:
    """Nearest-rank percentile. `values` must not be empty."""
    ranked = sorted(values)
    return ranked[max(0, -(-percent * len(ranked) // 100) - 1)]  # ceil(percent / 100 * n) - 1


@dataclass(frozen=True, slots=True)
class Distribution:
    """Statistics of a set of values; all 0 for an empty set."""

    count: int
    mean: float
    minimum: float
    p50: float
    p90: float
    p99: float
    maximum: float


def distribution(values: Iterable[float]) -> Distribution:
    """Statistics of `values`."""
    known = list(values)
    p50, p90, p99 = (percentile(known, percent) if known else 0.0 for percent in PERCENTS)
    return Distribution(
        count=len(known),
        mean=sum(known) / len(known) if known else 0.0,
        minimum=min(known, default=0.0),
        p50=p50,
        p90=p90,
        p99=p99,
        maximum=max(known, default=0.0),
    )


@dataclass(frozen=True, slots=True)
class Case:
    """Comparable requests: same machine, model and request settings. Values that differ per request are set to 0."""

    machine: Machine
    model: ModelInfo
    request: RequestInfo


@dataclass(frozen=True, slots=True)
class Summary:
    """Statistics of one case. Times in milliseconds.

    `gapless_ms`: earliest start of playback without an underrun. `completed`: requests with audio; `without_underrun`:
    those among them that played without an underrun.
    `audio_s_per_s`: seconds of audio per second, all streams together, from the first request to the last piece.
    """

    case: Case
    requests: int
    completed: int
    refused: int
    failed: int
    stages_ms: dict[str, Distribution]
    unaccounted_ms: Distribution
    first_packet_ms: Distribution
    gapless_ms: Distribution
    lm_ms: Distribution
    codec_ms: Distribution
    first_sound_ms: Distribution
    first_audible_ms: Distribution
    leading_silence_ms: Distribution
    gaps_ms: Distribution
    frame_ms: Distribution
    real_time_factor: Distribution
    audio_s: Distribution
    input_characters: Distribution
    input_tokens: Distribution
    without_underrun: int
    underruns: int
    underrun_ms: float
    audio_s_per_s: float
    batch_rows: float
    peak_bytes: int


def case_of(record: RequestRecord) -> Case:
    """The case of a record. Whether its times include reference encoding is part of the case; its text is not."""
    return Case(record.machine, record.model, replace(record.request, number=0, run=0, seed=0, input_characters=0))


def summaries(records: Iterable[RequestRecord]) -> list[Summary]:
    """One summary per case, in order of first appearance."""
    cases: dict[Case, list[RequestRecord]] = {}
    for record in records:
        cases.setdefault(case_of(record), []).append(record)
    return [summary(case, of_case) for case, of_case in cases.items()]


def summary(case: Case, records: Sequence[RequestRecord]) -> Summary:
    """Summarize one case."""
    audio = [record.audio for record in records if record.audio is not None]
    rate_hz = case.model.sample_rate_hz
    return Summary(
        case=case,
        requests=len(records),
        completed=len(audio),
        refused=sum(record.outcome == "refused" for record in records),
        failed=sum(record.outcome in ("failed", "empty") for record in records),
        stages_ms={name: distribution(each.stages_ms.get(name, 0.0) for each in audio) for name in ALL_STAGES},
        unaccounted_ms=distribution(each.unaccounted_ms for each in audio),
        first_packet_ms=distribution(each.first_packet_ms for each in audio),
        gapless_ms=distribution(each.gapless_ms(rate_hz) for each in audio),
        lm_ms=distribution(each.lm_ms for each in audio),
        codec_ms=distribution(each.codec_ms for each in audio),
        first_sound_ms=distribution(each.first_sound_ms for each in audio),
        first_audible_ms=distribution(each.first_audible_ms for each in audio),
        leading_silence_ms=distribution(each.leading_silence_ms for each in audio),
        gaps_ms=distribution(gap for each in audio for gap in each.gaps_ms),
        frame_ms=distribution(each.frame_ms for each in audio if each.frame_ms is not None),
        real_time_factor=distribution(each.real_time_factor for each in audio),
        audio_s=distribution(each.samples / rate_hz for each in audio),
        input_characters=distribution(float(record.request.input_characters) for record in records),
        input_tokens=distribution(float(each.input_tokens) for each in audio),
        without_underrun=sum(each.underruns == 0 for each in audio),
        underruns=sum(each.underruns for each in audio),
        underrun_ms=sum(each.underrun_ms for each in audio),
        audio_s_per_s=_throughput(records, rate_hz),
        batch_rows=distribution(record.batch_rows for record in records).mean,
        peak_bytes=max(record.peak_bytes for record in records),
    )


def _throughput(records: Sequence[RequestRecord], rate_hz: int) -> float:
    """Seconds of audio per second, averaged over the runs: each run is a process with its own clock."""
    rates: list[float] = []
    for run in {record.request.run for record in records}:
        of_run = [record for record in records if record.request.run == run]
        sent = [(record.at_s, record.audio) for record in of_run if record.audio is not None]
        duration_s = _duration_s(sent)
        if duration_s:
            rates.append(sum(audio.samples for _, audio in sent) / rate_hz / duration_s)
    return sum(rates) / len(rates) if rates else 0.0


def _duration_s(sent: Sequence[tuple[float, AudioMetrics]]) -> float:
    """Seconds from the first request to the last piece."""
    if not sent:
        return 0.0
    ends_s = [at_s + audio.arrived_ms[-1] / 1000 for at_s, audio in sent]
    return max(ends_s) - min(at_s for at_s, _ in sent)


def labels(cases: Sequence[Case]) -> list[str]:
    """A short name for each case: transport, cold or warm, and whatever differs between the cases."""
    if not cases:
        return []
    phrases = [_phrases(case) for case in cases]
    differing = {name for name in phrases[0] if len({each[name] for each in phrases}) > 1}
    names = [name for name in phrases[0] if name in differing or name in ("transport", "cold")]
    return [", ".join(each[name] for name in names if each[name]) for each in phrases]


def _phrases(case: Case) -> dict[str, str]:
    """Every value of a case as a phrase for labels; "" for values that need no mention."""
    request = case.request
    metadata = {
        f"{owner}.{field.name}": str(getattr(part, field.name))
        for owner, part in (("machine", case.machine), ("model", case.model))
        for field in fields(part)
    }
    closed = request.loop == "closed"
    named = {
        "model.name": case.model.name,
        "transport": request.transport,
        "cold": "cold" if request.cold else "warm",
        "load": f"{request.concurrency} concurrent" if closed else f"{request.rate_hz:g} requests/s",
        "text rate": f"text at {request.text_tokens_per_s:g} tokens/s" if request.text_tokens_per_s else "text at once",
        "packets": "packets " + (",".join(map(str, request.packet_frames)) or "chosen by the engine"),
        "max_frames": f"at most {request.max_frames} frames" if request.max_frames else "whole texts",
        "prebuffer_ms": f"playback after {request.prebuffer_ms:g} ms",
        "max_num_seqs": f"max_num_seqs {request.max_num_seqs}",
        "layout": f"{request.layout} text",
        "included": "with reference encoding" if request.included.reference_encoding else "",
    }
    return {**metadata, **named}
