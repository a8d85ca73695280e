"""Compare two files of records: pair equal requests, and report the distribution of the ratios B / A.

Requests are paired by text, seed, transport, load and packet sizes. Differences in metadata (machine, model, engine
settings) are listed. Pure functions. Only speed is compared.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby

from legato.bench.records import BatchRecord, Records, RequestInfo, RequestRecord
from legato.bench.rendering import ReportTable
from legato.bench.report import metadata_of
from legato.bench.summary import percentile

LOWER, HIGHER = "lower is faster", "higher is faster"


@dataclass(frozen=True, slots=True)
class Metric:
    """One comparable value of a record. `pair` identifies the request within the setting."""

    setting: str
    name: str
    direction: str
    pair: str
    value: float


@dataclass(frozen=True, slots=True)
class Ratio:
    """The ratios B / A of one metric in one setting, over `pairs` pairs. In `b_faster` of them B is faster."""

    setting: str
    name: str
    direction: str
    pairs: int
    a_median: float
    b_median: float
    geometric_mean: float
    minimum: float
    p10: float
    p90: float
    maximum: float
    b_faster: int


@dataclass(frozen=True, slots=True)
class Comparison:
    """All ratios, the differences in metadata (name, A, B), and the number of values without a pair."""

    ratios: tuple[Ratio, ...]
    differences: tuple[tuple[str, str, str], ...]
    unpaired: int


def compare(a: Records, b: Records) -> Comparison:
    """Pair equal requests. Without any pair there are no ratios."""
    in_a, in_b = _by_pair(a), _by_pair(b)
    keys = [key for key in in_a if key in in_b]
    grouped: dict[tuple[str, str, str], list[tuple[float, float]]] = {}
    for key in keys:
        metric = in_a[key]
        grouped.setdefault((metric.setting, metric.name, metric.direction), []).append((metric.value, in_b[key].value))
    ratios = tuple(_ratio(*group, values) for group, values in grouped.items())
    return Comparison(ratios, tuple(_differences(a, b)), len(in_a) + len(in_b) - 2 * len(keys))


def _by_pair(records: Records) -> dict[tuple[str, str, str], Metric]:
    """Positive values by setting, name and pair."""
    found: dict[tuple[str, str, str], Metric] = {}
    for record in records:
        for metric in metrics_of(record):
            if metric.value > 0:
                found[metric.setting, metric.name, metric.pair] = metric
    return found


def metrics_of(record: object) -> Iterator[Metric]:
    """The comparable values of a record."""
    if isinstance(record, RequestRecord) and record.audio is not None:
        request, audio = record.request, record.audio
        pair = f"{request.number}.{request.seed}.{request.input_characters}.{request.run}"
        for name, value in {
            "TTFA, ms": audio.first_packet_ms,
            "TTFA: LM, ms": audio.lm_ms,
            "TTFA: codec, ms": audio.codec_ms,
            "playback start, ms": audio.first_sound_ms,
            "first audible sample, ms": audio.first_audible_ms,
            "RTF": audio.real_time_factor,
        }.items():
            yield Metric(setting=setting_of(request), name=name, direction=LOWER, pair=pair, value=value)
    if isinstance(record, BatchRecord):
        setting = f"batch of {record.streams}, {record.mode}"
        yield Metric(setting=setting, name="frames/s", direction=HIGHER, pair="", value=record.total_frames_per_s)


def setting_of(request: RequestInfo) -> str:
    """Description of the load and the request parameters, without per-request values and engine settings."""
    load = f"{request.concurrency} concurrent" if request.loop == "closed" else f"{request.rate_hz:g} requests/s"
    parts = [request.transport, "cold" if request.cold else "warm", load, f"packets {list(request.packet_frames)}"]
    if request.max_frames:
        parts.append(f"at most {request.max_frames} frames")
    if request.text_tokens_per_s:
        parts.append(f"text at {request.text_tokens_per_s:g} tokens/s")
    if request.prebuffer_ms:
        parts.append(f"playback after {request.prebuffer_ms:g} ms")
    return ", ".join(parts)


def _ratio(setting: str, name: str, direction: str, values: Sequence[tuple[float, float]]) -> Ratio:
    ratios = [b / a for a, b in values]
    return Ratio(
        setting=setting,
        name=name,
        direction=direction,
        pairs=len(values),
        a_median=percentile([a for a, _ in values], 50),
        b_median=percentile([b for _, b in values], 50),
        geometric_mean=math.exp(sum(map(math.log, ratios)) / len(ratios)),
        minimum=min(ratios),
        p10=percentile(ratios, 10),
        p90=percentile(ratios, 90),
        maximum=max(ratios),
        b_faster=sum(ratio < 1 if direction == LOWER else ratio > 1 for ratio in ratios),
    )


def _differences(a: Records, b: Records) -> Iterator[tuple[str, str, str]]:
    """Metadata that differs: name, value in A, value in B."""
    facts_a, facts_b = dict(metadata_of(a)), dict(metadata_of(b))
    for name in {**facts_a, **facts_b}:
        if facts_a.get(name, "") != facts_b.get(name, ""):
            yield name, facts_a.get(name, "-"), facts_b.get(name, "-")


def comparison_tables(comparison: Comparison) -> Iterator[ReportTable]:
    """A table of the differences, then one table of ratios per setting."""
    yield ReportTable(
        title="Differences",
        headings=("", "A", "B"),
        rows=comparison.differences or (("none recorded", "", ""),),
        text_columns=3,
    )
    for setting, ratios in groupby(comparison.ratios, key=lambda each: each.setting):
        yield ReportTable(
            title=f"B / A: {setting}",
            headings=("", "pairs", "A p50", "B p50", "B / A", "p10", "p90", "min", "max", "B faster in"),
            rows=tuple(_row(ratio) for ratio in ratios),
            note="A pair is the same request in both files. B / A is the geometric mean over the pairs.",
        )


def _row(ratio: Ratio) -> tuple[str, ...]:
    spread = (ratio.geometric_mean, ratio.p10, ratio.p90, ratio.minimum, ratio.maximum)
    return (
        ratio.name,
        str(ratio.pairs),
        f"{ratio.a_median:.4g}",
        f"{ratio.b_median:.4g}",
        *(f"{each:.3f}" for each in spread),
        f"{ratio.b_faster} of {ratio.pairs}",
    )


def comparison_json(comparison: Comparison) -> Mapping[str, object]:
    """The comparison as JSON."""
    return {"schema": "legato-bench-compare-2", **asdict(comparison)}
