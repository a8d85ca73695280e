"""Benchmark reports: tables for the terminal, JSON, and an HTML page. Pure functions of the records.

Each section function selects its kinds of records and yields tables and plots in the order of the page.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, fields

from legato.bench.batch import batch_tables, deterministic_slowdown
from legato.bench.contention import contention_tables
from legato.bench.environment import Machine, ModelInfo
from legato.bench.memory import memory_tables
from legato.bench.records import (
    BatchRecord,
    ContentionRecord,
    MemoryRecord,
    Records,
    RequestRecord,
    SideCostRecord,
)
from legato.bench.rendering import Plot, ReportTable, html_page
from legato.bench.request_report import batch_plots, request_plots, request_tables
from legato.bench.side_costs import side_cost_table
from legato.bench.steps import steps_section
from legato.bench.summary import summaries

REPORT_SCHEMA = "legato-bench-report-3"


def request_section(records: Records) -> Iterator[ReportTable | Plot]:
    """Latency and load."""
    requests = [record for record in records if isinstance(record, RequestRecord)]
    if requests:
        yield from request_plots(requests)
        yield from request_tables(requests)
    side_costs = [record for record in records if isinstance(record, SideCostRecord)]
    if side_costs:
        yield side_cost_table(side_costs)


def batch_section(records: Records) -> Iterator[ReportTable | Plot]:
    """Throughput against batch size."""
    batches = [record for record in records if isinstance(record, BatchRecord)]
    yield from batch_plots(batches)
    yield from batch_tables(batches)


def memory_section(records: Records) -> Iterator[ReportTable | Plot]:
    """Memory with all slots in use."""
    yield from memory_tables([record for record in records if isinstance(record, MemoryRecord)])


def contention_section(records: Records) -> Iterator[ReportTable | Plot]:
    """RTF with busy processes."""
    yield from contention_tables([record for record in records if isinstance(record, ContentionRecord)])


SECTIONS = (request_section, batch_section, steps_section, memory_section, contention_section)


def tables(records: Records) -> list[ReportTable]:
    """The tables for a terminal."""
    return [part for section in SECTIONS for part in section(records) if isinstance(part, ReportTable)]


def to_html(records: Records, title: str) -> str:
    """The HTML page."""
    return html_page(title, metadata_of(records), [part for section in SECTIONS for part in section(records)])


def to_json(records: Records) -> str:
    """All summaries with full precision, and the metadata of the records."""
    batches = [record for record in records if isinstance(record, BatchRecord)]
    slowdown = deterministic_slowdown(batches)
    value = {
        "schema": REPORT_SCHEMA,
        "metadata": dict(metadata_of(records)),
        "cases": [asdict(each) for each in summaries(each for each in records if isinstance(each, RequestRecord))],
        "side_costs": [asdict(record) for record in records if isinstance(record, SideCostRecord)],
        "batches": [asdict(record) for record in batches],
        "deterministic_slowdown": {str(streams): factor for streams, factor in slowdown.items()},
    }
    return json.dumps(value, ensure_ascii=False, indent=1, allow_nan=False) + "\n"


def metadata_of(records: Records) -> list[tuple[str, str]]:
    """Metadata of the records as (name, value). The value lists all values if the records differ."""
    values: dict[str, dict[str, None]] = {}  # the inner dict is an ordered set
    for record in records:
        for part in (getattr(record, "model", None), getattr(record, "machine", None)):
            for field in fields(part) if isinstance(part, Machine | ModelInfo) else ():
                value = getattr(part, field.name)
                text = f"{value:,}" if type(value) is int else str(value)
                values.setdefault(field.name.replace("_", " "), {})[text] = None
    metadata = [(name, "; ".join(filter(None, texts))) for name, texts in values.items() if any(texts)]
    return metadata + _request_metadata([record for record in records if isinstance(record, RequestRecord)])


def _request_metadata(records: Sequence[RequestRecord]) -> list[tuple[str, str]]:
    """Sizes of requests and responses, and the work that the times include."""
    if not records:
        return []
    audio = [(record.model.sample_rate_hz, record.audio) for record in records if record.audio is not None]
    included = [record.request.included for record in records]
    work = {
        "text front end": any(each.text_front_end for each in included),
        "reference encoding": any(each.reference_encoding for each in included),
        "device copies": any(each.device_copies for each in included),
    }
    return [
        ("input characters", _range([record.request.input_characters for record in records])),
        ("input tokens", _range([each.input_tokens for _, each in audio])),
        ("seconds of audio", _range([each.samples / rate_hz for rate_hz, each in audio])),
        ("packet frames", "; ".join(dict.fromkeys(str(list(each.request.packet_frames)) for each in records))),
        ("included in the times", ", ".join(name for name, present in work.items() if present)),
        ("not included", ", ".join(name for name, present in work.items() if not present) or "nothing"),
        ("stage ends", "; ".join(dict.fromkeys(_stage_end(record.synchronized) for record in records))),
    ]


def _stage_end(synchronized: bool) -> str:
    return "device synchronized" if synchronized else "host clock"


def _range(values: Sequence[float]) -> str:
    if not values:
        return "none"
    minimum, maximum = min(values), max(values)
    return f"{minimum:.4g}" if minimum == maximum else f"{minimum:.4g} to {maximum:.4g}"
