"""Two files of records side by side: each request with the same one in the other, their quotients and how these spread.

A pair is what was asked alike: same text, seed, way, company and packets. What differs between the two (the machine,
the model, the settings of the engine) is the subject, and is told. Pure; says which is faster, never which is right.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby

from legato.bench.grid import Grid
from legato.bench.records import Asked, BatchRecord, RequestRecord
from legato.bench.report import Records, facts_of
from legato.bench.summary import percentile

LOWER, HIGHER = "lower is faster", "higher is faster"


@dataclass(frozen=True, slots=True)
class Figure:
    """One value of a record that can be compared: under which setting it was measured, and what it is."""

    setting: str
    name: str
    faster: str
    pair: str
    value: float


@dataclass(frozen=True, slots=True)
class Ratio:
    """B over A for one figure under one setting, over `pairs` pairs. `typical` is the geometric mean."""

    setting: str
    name: str
    faster: str
    pairs: int
    a_median: float
    b_median: float
    typical: float
    least: float
    p10: float
    p90: float
    most: float
    b_faster: int


@dataclass(frozen=True, slots=True)
class Comparison:
    """All ratios, what tells the two sides apart, and the figures that had no partner on the other side."""

    ratios: tuple[Ratio, ...]
    differing: tuple[tuple[str, str, str], ...]
    unpaired: int


def compare(a: Records, b: Records) -> Comparison:
    """Pair what was asked alike. No pair at all gives no ratio."""
    in_a, in_b = _by_pair(a), _by_pair(b)
    keys = [key for key in in_a if key in in_b]
    grouped: dict[tuple[str, str, str], list[tuple[float, float]]] = {}
    for key in keys:
        figure = in_a[key]
        grouped.setdefault((figure.setting, figure.name, figure.faster), []).append((figure.value, in_b[key].value))
    ratios = tuple(_ratio(*head, values) for head, values in grouped.items())
    return Comparison(ratios, tuple(_differing(a, b)), len(in_a) + len(in_b) - 2 * len(keys))


def _by_pair(records: Records) -> dict[tuple[str, str, str], Figure]:
    found: dict[tuple[str, str, str], Figure] = {}
    for record in records:
        for figure in figures_of(record):
            if figure.value > 0:
                found[figure.setting, figure.name, figure.pair] = figure
    return found


def figures_of(record: object) -> Iterator[Figure]:
    """What of a record is compared."""
    if isinstance(record, RequestRecord):
        pair = f"{record.asked.number}.{record.asked.seed}.{record.asked.input_characters}.{record.asked.run}"
        for sound in record.sounds:
            for name, value in {
                "first packet, ms": sound.first_packet_ms,
                "language model before it, ms": sound.lm_ms,
                "its codec, ms": sound.codec_ms,
                "first sound, ms": sound.first_sound_ms,
                "first audible sample, ms": sound.first_audible_ms,
                "real-time factor": sound.real_time_factor,
            }.items():
                yield Figure(setting_of(record.asked), name, LOWER, pair, value)
    if isinstance(record, BatchRecord):
        yield Figure(f"batch of {record.streams}, {record.mode}", "frames/s", HIGHER, "", record.total_frames_s)


def setting_of(asked: Asked) -> str:
    """How it was asked, without what differs from request to request and without the engine's own settings."""
    company = f"{asked.concurrency} at once" if asked.loop == "closed" else f"{asked.rate_hz:g} a second"
    parts = [asked.transport, "cold" if asked.cold else "warm", company, f"packets {list(asked.packet_frames)}"]
    parts += [f"at most {asked.max_frames} frames"] if asked.max_frames else []
    parts += [f"text at {asked.text_tokens_s:g} tokens/s"] if asked.text_tokens_s else []
    parts += [f"plays after {asked.start_ms:g} ms"] if asked.start_ms else []
    return ", ".join(parts)


def _ratio(setting: str, name: str, faster: str, values: Sequence[tuple[float, float]]) -> Ratio:
    quotients = [b / a for a, b in values]
    return Ratio(
        setting=setting,
        name=name,
        faster=faster,
        pairs=len(values),
        a_median=percentile([a for a, _ in values], 50),
        b_median=percentile([b for _, b in values], 50),
        typical=math.exp(sum(map(math.log, quotients)) / len(quotients)),
        least=min(quotients),
        p10=percentile(quotients, 10),
        p90=percentile(quotients, 90),
        most=max(quotients),
        b_faster=sum((quotient < 1) == (faster == LOWER) and quotient != 1 for quotient in quotients),
    )


def _differing(a: Records, b: Records) -> Iterator[tuple[str, str, str]]:
    """Facts that are not the same on both sides."""
    facts_a, facts_b = dict(facts_of(a)), dict(facts_of(b))
    for name in {**facts_a, **facts_b}:
        if facts_a.get(name, "") != facts_b.get(name, ""):
            yield name, facts_a.get(name, "-"), facts_b.get(name, "-")


def comparison_tables(comparison: Comparison) -> Iterator[Grid]:
    """What differs, then the ratios."""
    yield Grid(
        title="What differs",
        headings=("", "A", "B"),
        rows=comparison.differing or (("nothing that was recorded", "", ""),),
        left=3,
    )
    for setting, ratios in groupby(comparison.ratios, key=lambda each: each.setting):
        yield Grid(
            title=f"B over A: {setting}",
            headings=("", "pairs", "A p50", "B p50", "B / A", "p10", "p90", "least", "most", "B faster in"),
            rows=tuple(_row(ratio) for ratio in ratios),
            note="Each pair is one request asked of both. B / A is the geometric mean over the pairs.",
        )


def _row(ratio: Ratio) -> tuple[str, ...]:
    return (
        ratio.name,
        str(ratio.pairs),
        f"{ratio.a_median:.4g}",
        f"{ratio.b_median:.4g}",
        *(f"{each:.3f}" for each in (ratio.typical, ratio.p10, ratio.p90, ratio.least, ratio.most)),
        f"{ratio.b_faster} of {ratio.pairs}",
    )


def comparison_json(comparison: Comparison) -> Mapping[str, object]:
    """All of it."""
    return {"schema": "legato-bench-compare-1", **asdict(comparison)}
