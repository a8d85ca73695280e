"""Tables of requests: the stages of each case, and what a load did to the streams. Owns and measures nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from string import ascii_uppercase

from legato.bench.grid import Grid
from legato.bench.records import RequestRecord
from legato.bench.summary import Spread, Summary, labels, summaries
from legato.bench.table2 import table2

CASES_BESIDE = 3
_MIB = 2**20


def request_tables(records: Sequence[RequestRecord]) -> Iterator[Grid]:
    """Stages, load, and the report's layout."""
    cases = summaries(records)
    yield from stage_tables(cases)
    yield load_table(cases)
    yield table2(cases)


def stage_tables(cases: Sequence[Summary]) -> Iterator[Grid]:
    """Stages down, cases across, a few beside each other."""
    spoken = [each for each in cases if each.spoken]
    names = labels([each.case for each in spoken])
    for start in range(0, len(spoken), CASES_BESIDE):
        yield _stage_table(names[start : start + CASES_BESIDE], spoken[start : start + CASES_BESIDE])


def _stage_table(names: Sequence[str], cases: Sequence[Summary]) -> Grid:
    letters = ascii_uppercase[: len(cases)]
    told = [f"{letter}: {name} ({each.spoken})" for letter, name, each in zip(letters, names, cases, strict=True)]
    figures = [f"{letter} {figure}" for letter in letters for figure in ("mean", "p50", "p90", "p99")]
    rows = [_stage_row(stage, [each.stages_ms[stage] for each in cases]) for stage in cases[0].stages_ms]
    rows.append(_stage_row("unaccounted", [each.unaccounted_ms for each in cases]))
    whole = len(rows)
    rows += [
        _stage_row("first sound: their sum", [each.first_sound_ms for each in cases]),
        _stage_row("first audible sample", [each.first_audible_ms for each in cases]),
        _stage_row("of it silence at the start", [each.leading_silence_ms for each in cases]),
        _stage_row("first packet: input wait to codec", [each.first_packet_ms for each in cases]),
    ]
    return Grid(
        title="From the request to the first sound",
        headings=("stage, ms", *figures),
        rows=tuple(rows),
        note=f"{'; '.join(told)} requests. A stage begins where the one above ends. Means add up, percentiles do not.",
        marked=(whole,),
    )


def _stage_row(name: str, values: Sequence[Spread]) -> tuple[str, ...]:
    cells = [f"{figure:.1f}" for each in values for figure in (each.mean, each.p50, each.p90, each.p99)]
    return (name, *cells)


LOAD_HEADINGS = (
    "",
    "asked",
    "refused",
    "failed",
    "first packet p50",
    "p90",
    "p99",
    "gap p50",
    "p99",
    "kept in real time",
    "dry ms",
    "real-time factor p50",
    "p99",
    "sound s/s",
    "rows",
    "memory MiB",
)


def load_table(cases: Sequence[Summary]) -> Grid:
    """What each case's streams got."""
    names = labels([each.case for each in cases])
    return Grid(
        title="Streams side by side",
        headings=LOAD_HEADINGS,
        rows=tuple(_load_row(name, each) for name, each in zip(names, cases, strict=True)),
        note=(
            "First packet and gaps between packets in ms. Kept in real time: streams whose listener never ran dry. "
            "Real-time factor: seconds of work for each second of sound of one stream; sound s/s: of all streams "
            "together. Rows: streams in one call of the talker, mean. Memory: the most so far."
        ),
    )


def _load_row(name: str, each: Summary) -> tuple[str, ...]:
    first, gaps, factor = each.first_packet_ms, each.gaps_ms, each.real_time_factor
    return (
        name,
        str(each.asked),
        str(each.refused),
        str(each.failed),
        *(f"{value:.0f}" for value in (first.p50, first.p90, first.p99, gaps.p50, gaps.p99)),
        f"{each.kept} of {each.spoken}",
        f"{each.underrun_ms:.0f}",
        f"{factor.p50:.2f}",
        f"{factor.p99:.2f}",
        f"{each.audio_s_per_s:.2f}",
        f"{each.batch_rows:.1f}",
        f"{each.peak_bytes / _MIB:.0f}",
    )
