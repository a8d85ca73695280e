"""Plots of requests: stages stacked, first packet and throughput against concurrency, gaps. Owns nothing.

Each is left out where there is nothing to plot, as a load of one level is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from legato.bench.page import Plot
from legato.bench.plot import Line, linear, lines, logarithmic, shares, stacked_bars
from legato.bench.records import ALL_STAGES, BatchRecord, RequestRecord
from legato.bench.summary import Case, Summary, case_of, labels, summaries

SHORTEST_MS = 0.1


def request_plots(records: Sequence[RequestRecord]) -> Iterator[Plot]:
    """Those for which there is something to plot."""
    cases = [each for each in summaries(records) if each.spoken]
    if not cases:
        return
    yield _stages(cases)
    families = _families(cases)
    if families:
        yield _first_packet(families)
        yield _throughput(families)
    gaps = _gaps(records)
    if gaps:
        yield _gap_plot(gaps, records)


def _stages(cases: Sequence[Summary]) -> Plot:
    parts = [(stage, [each.stages_ms[stage].mean for each in cases]) for stage in ALL_STAGES]
    parts.append(("unaccounted", [each.unaccounted_ms.mean for each in cases]))
    names = labels([each.case for each in cases])
    return Plot(
        "Where the time until the first sound goes",
        stacked_bars(names, parts, title="ms since the client asked", unit="ms"),
        "Means over the requests of each case. Point at a part for its name and value.",
    )


def _families(cases: Sequence[Summary]) -> list[tuple[str, list[Summary]]]:
    """Warm closed loops that differ in their number of clients alone, in its order, where there are several."""
    found: dict[Case, list[Summary]] = {}
    for each in cases:
        asked = each.case.asked
        if asked.loop == "closed" and not asked.cold:
            found.setdefault(replace(each.case, asked=replace(asked, concurrency=0)), []).append(each)
    several = {family: levels for family, levels in found.items() if len(levels) > 1}
    ordered = [sorted(levels, key=lambda each: each.case.asked.concurrency) for levels in several.values()]
    return list(zip(labels(list(several)), ordered, strict=True))


def _first_packet(families: Sequence[tuple[str, list[Summary]]]) -> Plot:
    drawn: list[Line] = []
    for at, (name, family) in enumerate(families):
        for percent, dashed in ((50, False), (90, True)):
            points = tuple(
                (each.case.asked.concurrency, each.first_packet_ms.p90 if dashed else each.first_packet_ms.p50)
                for each in family
            )
            drawn.append(Line(f"{name}, p{percent}", points, 3 + at, dashed))
    values = [value for line in drawn for _, value in line.points]
    at_once = linear("streams at once", [point[0] for line in drawn for point in line.points])
    return Plot("First packet against concurrency", lines(drawn, at_once, linear("first packet, ms", values)))


def _throughput(families: Sequence[tuple[str, list[Summary]]]) -> Plot:
    drawn = [
        Line(name, tuple((each.case.asked.concurrency, each.audio_s_per_s) for each in family), 3 + at)
        for at, (name, family) in enumerate(families)
    ]
    values = [value for line in drawn for _, value in line.points]
    at_once = linear("streams at once", [point[0] for line in drawn for point in line.points])
    return Plot(
        "Throughput against concurrency",
        lines(drawn, at_once, linear("sound, s for each s", values)),
        "Seconds of sound made in a second by all streams together. A stream keeps real time where each has its 1.",
    )


def _gaps(records: Sequence[RequestRecord]) -> list[tuple[str, list[float]]]:
    warm = [record for record in records if not record.asked.cold]
    cases = list(dict.fromkeys(case_of(record) for record in warm))
    found = [
        (name, [gap for each in warm if case_of(each) == case for sound in each.sounds for gap in sound.gaps_ms])
        for name, case in zip(labels(cases), cases, strict=True)
    ]
    return [(name, [max(gap, SHORTEST_MS) for gap in gaps]) for name, gaps in found if gaps]


def _gap_plot(gaps: Sequence[tuple[str, list[float]]], records: Sequence[RequestRecord]) -> Plot:
    drawn = [Line(name, shares(of_case), 3 + at) for at, (name, of_case) in enumerate(gaps)]
    sizes = {
        record.asked.packet_frames[-1] * 1000 * record.model.frame_samples / record.model.sample_rate_hz
        for record in records
    }
    wide = [gap for _, of_case in gaps for gap in of_case] + list(sizes)
    share = linear("share of gaps that are no longer", [1.0])
    return Plot(
        "Gaps between packets",
        lines(
            drawn,
            logarithmic("gap, ms", wide),
            share,
            marks=[(size, f"{size:g} ms: the sound in a packet") for size in sorted(sizes)],
            dots=False,
        ),
        "A stream keeps real time while its packets come, on average, no further apart than the sound that they hold. "
        f"Several packets may come at once: gaps below {SHORTEST_MS:g} ms are drawn there.",
    )


def batch_plots(records: Sequence[BatchRecord]) -> Iterator[Plot]:
    """Throughput against batch size."""
    families = dict.fromkeys((record.model, record.mode) for record in records)
    drawn = [
        Line(
            f"{model.name}, {mode}",
            tuple(
                (record.streams, record.audio_s_per_s)
                for record in sorted(records, key=lambda each: each.streams)
                if (record.model, record.mode) == (model, mode)
            ),
            3 + at,
        )
        for at, (model, mode) in enumerate(families)
    ]
    if drawn:
        rows = linear("streams in the batch", [point[0] for line in drawn for point in line.points])
        values = linear("sound, s for each s", [value for line in drawn for _, value in line.points])
        yield Plot("Throughput against batch size", lines(drawn, rows, values))
