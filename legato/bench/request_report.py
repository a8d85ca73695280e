"""Tables and plots of request records: stages, load, and a table in the layout of the Qwen3-TTS report.

Pure functions. The Qwen3-TTS report lists LM time until the fourth frame and codec time of the first packet at 1, 3 and
6 concurrent requests. It does not name the accelerator, so its values are shown only for orientation and are marked as
published, not measured.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from string import ascii_uppercase

from legato.bench.records import ALL_STAGES, MIB, BatchRecord, RequestRecord
from legato.bench.rendering import (
    Line,
    Plot,
    ReportTable,
    cumulative_distribution,
    line_plot,
    linear_axis,
    log_axis,
    stacked_bars,
)
from legato.bench.summary import Case, Distribution, Summary, case_of, labels, summaries

CASES_PER_TABLE = 3


def request_tables(records: Sequence[RequestRecord]) -> Iterator[ReportTable]:
    """Stages, load, and the layout of the Qwen3-TTS report."""
    cases = summaries(records)
    yield from stage_tables(cases)
    yield load_table(cases)
    yield table2(cases)


def stage_tables(cases: Sequence[Summary]) -> Iterator[ReportTable]:
    """Stages as rows, cases as groups of columns, a few cases per table."""
    completed = [each for each in cases if each.completed]
    names = labels([each.case for each in completed])
    for start in range(0, len(completed), CASES_PER_TABLE):
        yield _stage_table(names[start : start + CASES_PER_TABLE], completed[start : start + CASES_PER_TABLE])


def _stage_table(names: Sequence[str], cases: Sequence[Summary]) -> ReportTable:
    letters = ascii_uppercase[: len(cases)]
    legend = [f"{letter}: {name} ({each.completed})" for letter, name, each in zip(letters, names, cases, strict=True)]
    figures = [f"{letter} {figure}" for letter in letters for figure in ("mean", "p50", "p90", "p99")]
    rows = [_stage_row(stage, [each.stages_ms[stage] for each in cases]) for stage in cases[0].stages_ms]
    rows.append(_stage_row("unaccounted", [each.unaccounted_ms for each in cases]))
    sum_row = len(rows)
    rows += [
        _stage_row("playback start (sum)", [each.first_sound_ms for each in cases]),
        _stage_row("first audible sample", [each.first_audible_ms for each in cases]),
        _stage_row("leading silence", [each.leading_silence_ms for each in cases]),
        _stage_row("TTFA: input wait to codec", [each.first_packet_ms for each in cases]),
        _stage_row("gapless TTFA", [each.gapless_ms for each in cases]),
    ]
    return ReportTable(
        title="Latency by stage",
        headings=("stage, ms", *figures),
        rows=tuple(rows),
        note=f"{'; '.join(legend)} requests. Stages are contiguous. Means add up, percentiles do not.",
        highlighted=(sum_row,),
    )


def _stage_row(name: str, values: Sequence[Distribution]) -> tuple[str, ...]:
    cells = [f"{figure:.1f}" for each in values for figure in (each.mean, each.p50, each.p90, each.p99)]
    return (name, *cells)


LOAD_HEADINGS = (
    "",
    "requests",
    "refused",
    "failed",
    "TTFA p50",
    "p90",
    "p99",
    "gapless p50",
    "p99",
    "gap p50",
    "p99",
    "no underrun",
    "underrun ms",
    "RTF p50",
    "p99",
    "audio s/s",
    "batch",
    "memory MiB",
)


def load_table(cases: Sequence[Summary]) -> ReportTable:
    """Latency, underruns and throughput of each case."""
    names = labels([each.case for each in cases])
    return ReportTable(
        title="Load",
        headings=LOAD_HEADINGS,
        rows=tuple(_load_row(name, each) for name, each in zip(names, cases, strict=True)),
        note=(
            "TTFA (in the engine) and inter-chunk gaps in ms. Gapless: earliest start of playback without an underrun, "
            "at the client, in ms. No underrun: streams that played without one from the first packet. RTF: "
            "processing time per second of audio of one stream; audio s/s: of all streams together. Batch: mean talker "
            "batch size. Memory: peak so far."
        ),
    )


def _load_row(name: str, each: Summary) -> tuple[str, ...]:
    ttfa, gapless, gaps, rtf = each.first_packet_ms, each.gapless_ms, each.gaps_ms, each.real_time_factor
    return (
        name,
        str(each.requests),
        str(each.refused),
        str(each.failed),
        *(f"{value:.0f}" for value in (ttfa.p50, ttfa.p90, ttfa.p99, gapless.p50, gapless.p99, gaps.p50, gaps.p99)),
        f"{each.without_underrun} of {each.completed}",
        f"{each.underrun_ms:.0f}",
        f"{rtf.p50:.2f}",
        f"{rtf.p99:.2f}",
        f"{each.audio_s_per_s:.2f}",
        f"{each.batch_rows:.1f}",
        f"{each.peak_bytes / MIB:.0f}",
    )


# --- the layout of the Qwen3-TTS report ------------------------------------------------------------------------------

PUBLISHED_PACKET_FRAMES = 4
SOURCE = "Qwen3-TTS technical report, arXiv 2601.15621, Table 2"


@dataclass(frozen=True, slots=True)
class Published:
    """A row of the report, in milliseconds."""

    model: str
    concurrency: int
    lm_ms: int
    codec_ms: int
    first_packet_ms: int
    frame_ms: int
    real_time_factor: float


PUBLISHED = (
    Published(
        model="12Hz-0.6B", concurrency=1, lm_ms=93, codec_ms=4, first_packet_ms=97, frame_ms=23, real_time_factor=0.288
    ),
    Published(
        model="12Hz-0.6B",
        concurrency=3,
        lm_ms=174,
        codec_ms=5,
        first_packet_ms=179,
        frame_ms=27,
        real_time_factor=0.338,
    ),
    Published(
        model="12Hz-0.6B",
        concurrency=6,
        lm_ms=294,
        codec_ms=5,
        first_packet_ms=299,
        frame_ms=35,
        real_time_factor=0.434,
    ),
    Published(
        model="12Hz-1.7B", concurrency=1, lm_ms=97, codec_ms=4, first_packet_ms=101, frame_ms=25, real_time_factor=0.313
    ),
    Published(
        model="12Hz-1.7B",
        concurrency=3,
        lm_ms=190,
        codec_ms=5,
        first_packet_ms=195,
        frame_ms=29,
        real_time_factor=0.363,
    ),
    Published(
        model="12Hz-1.7B",
        concurrency=6,
        lm_ms=328,
        codec_ms=5,
        first_packet_ms=333,
        frame_ms=37,
        real_time_factor=0.463,
    ),
)
"""`frame_ms` is the report's LM time plus its codec time of one 80 ms frame."""

TABLE2_HEADINGS = ("", "concurrency", "packet frames", "LM", "codec", "TTFA", "later frame", "RTF")


def table2(summaries: Sequence[Summary]) -> ReportTable:
    """Measured medians of warm closed-loop cases, then the published rows."""
    warm = [
        each
        for each in summaries
        if each.completed and not each.case.request.cold and each.case.request.loop == "closed"
    ]
    names = labels([each.case for each in warm])
    measured = [_measured_row(name, each) for name, each in zip(names, warm, strict=True)]
    published = [_published_row(row) for row in PUBLISHED]
    return ReportTable(
        title="LM and codec until the first packet",
        headings=TABLE2_HEADINGS,
        rows=tuple(measured + published),
        note=(
            "Medians in ms since the engine received the request. LM: until all frames of the first packet are "
            f"generated. The last rows are published, not measured ({SOURCE}; accelerator not named), with "
            f"{PUBLISHED_PACKET_FRAMES} frames per packet."
        ),
        highlighted=tuple(range(len(measured), len(measured) + len(published))),
    )


def _measured_row(name: str, each: Summary) -> tuple[str, ...]:
    times = (each.lm_ms, each.codec_ms, each.first_packet_ms, each.frame_ms)
    return (
        f"{each.case.model.name}, {name}",
        str(each.case.request.concurrency),
        str((each.case.request.packet_frames or ("auto",))[0]),
        *(f"{value.p50:.1f}" if value.count else "-" for value in times),
        f"{each.real_time_factor.p50:.3f}",
    )


def _published_row(row: Published) -> tuple[str, ...]:
    return (
        f"{row.model}, published elsewhere, not measured",
        str(row.concurrency),
        str(PUBLISHED_PACKET_FRAMES),
        str(row.lm_ms),
        str(row.codec_ms),
        str(row.first_packet_ms),
        str(row.frame_ms),
        f"{row.real_time_factor:.3f}",
    )


# --- plots -----------------------------------------------------------------------------------------------------------

MIN_GAP_MS = 0.1
FIRST_LINE_COLOUR = 3

CasesByConcurrency = tuple[str, list[Summary]]
"""A name, and cases that differ only in concurrency, in its order."""


def request_plots(records: Sequence[RequestRecord]) -> Iterator[Plot]:
    """The plots for which there is data. For example, plots against concurrency need several levels."""
    cases = [each for each in summaries(records) if each.completed]
    if not cases:
        return
    yield _stage_plot(cases)
    groups = _by_concurrency(cases)
    if groups:
        yield _ttfa_plot(groups)
        yield _throughput_plot(groups)
    gaps = _gaps(records)
    if gaps:
        yield _gap_plot(gaps, records)


def _stage_plot(cases: Sequence[Summary]) -> Plot:
    parts = [(stage, [each.stages_ms[stage].mean for each in cases]) for stage in ALL_STAGES]
    parts.append(("unaccounted", [each.unaccounted_ms.mean for each in cases]))
    names = labels([each.case for each in cases])
    return Plot(
        "Time until playback starts, by stage",
        stacked_bars(names, parts, title="ms since the client's call", unit="ms"),
        "Means over the requests of each case. Hover over a part for its name and value.",
    )


def _by_concurrency(cases: Sequence[Summary]) -> list[CasesByConcurrency]:
    """Warm closed-loop cases grouped by everything but concurrency; only groups of several levels."""
    groups: dict[Case, list[Summary]] = {}
    for each in cases:
        request = each.case.request
        if request.loop == "closed" and not request.cold:
            groups.setdefault(replace(each.case, request=replace(request, concurrency=0)), []).append(each)
    several = {case: levels for case, levels in groups.items() if len(levels) > 1}
    ordered = [sorted(levels, key=lambda each: each.case.request.concurrency) for levels in several.values()]
    return list(zip(labels(list(several)), ordered, strict=True))


def _ttfa_plot(groups: Sequence[CasesByConcurrency]) -> Plot:
    series: list[Line] = []
    for index, (name, levels) in enumerate(groups):
        for percent, dashed in ((50, False), (90, True)):
            points = tuple(
                (each.case.request.concurrency, each.first_packet_ms.p90 if dashed else each.first_packet_ms.p50)
                for each in levels
            )
            series.append(Line(f"{name}, p{percent}", points, FIRST_LINE_COLOUR + index, dashed))
    return Plot("TTFA against concurrency", _against_streams(series, "concurrent streams", "TTFA, ms"))


def _throughput_plot(groups: Sequence[CasesByConcurrency]) -> Plot:
    series = [
        Line(
            name,
            tuple((each.case.request.concurrency, each.audio_s_per_s) for each in levels),
            FIRST_LINE_COLOUR + index,
        )
        for index, (name, levels) in enumerate(groups)
    ]
    return Plot(
        "Throughput against concurrency",
        _against_streams(series, "concurrent streams", "audio, s/s"),
        "Seconds of audio per second, all streams together. Real time needs 1 per stream.",
    )


def batch_plots(records: Sequence[BatchRecord]) -> Iterator[Plot]:
    """Throughput against batch size."""
    series = []
    for index, (model, mode) in enumerate(dict.fromkeys((record.model, record.mode) for record in records)):
        group = [record for record in records if (record.model, record.mode) == (model, mode)]
        points = tuple((each.streams, each.audio_s_per_s) for each in sorted(group, key=lambda each: each.streams))
        series.append(Line(f"{model.name}, {mode}", points, FIRST_LINE_COLOUR + index))
    if series:
        yield Plot("Throughput against batch size", _against_streams(series, "batch size", "audio, s/s"))


def _against_streams(series: Sequence[Line], x_title: str, y_title: str) -> str:
    points = [point for line in series for point in line.points]
    return line_plot(series, linear_axis(x_title, [x for x, _ in points]), linear_axis(y_title, [y for _, y in points]))


def _gaps(records: Sequence[RequestRecord]) -> list[tuple[str, list[float]]]:
    """The inter-chunk gaps of each warm case that has any."""
    gaps_ms: dict[Case, list[float]] = {}
    for record in records:
        if not record.request.cold:
            of_case = gaps_ms.setdefault(case_of(record), [])
            if record.audio is not None:
                of_case += [max(gap, MIN_GAP_MS) for gap in record.audio.gaps_ms]
    return [(name, gaps) for name, gaps in zip(labels(list(gaps_ms)), gaps_ms.values(), strict=True) if gaps]


def _gap_plot(gaps: Sequence[tuple[str, list[float]]], records: Sequence[RequestRecord]) -> Plot:
    series = [
        Line(name, cumulative_distribution(of_case), FIRST_LINE_COLOUR + index)
        for index, (name, of_case) in enumerate(gaps)
    ]
    packets_ms = {
        record.request.packet_frames[-1] * 1000 * record.model.frame_samples / record.model.sample_rate_hz
        for record in records
        if record.request.packet_frames
    }
    all_values = [gap for _, of_case in gaps for gap in of_case] + list(packets_ms)
    return Plot(
        "Inter-chunk gaps",
        line_plot(
            series,
            log_axis("gap, ms", all_values),
            linear_axis("fraction of gaps", [1.0]),
            marks=[(size, f"{size:g} ms: audio per packet") for size in sorted(packets_ms)],
            dots=False,
        ),
        "A stream runs in real time if the mean gap is at most the duration of a packet. Packets may arrive together; "
        f"gaps below {MIN_GAP_MS:g} ms are drawn at {MIN_GAP_MS:g} ms.",
    )
