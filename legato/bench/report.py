"""A report of records of any kind: tables for the terminal, JSON, one page. Every figure is made from the records anew.

Owns the list of kinds that a file of records may hold. A kind brings its dataclass and a chapter, which takes the
records of its own kind from all and yields tables and plots in the order of the page.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, fields
from typing import TYPE_CHECKING

from legato.bench.asides import AsideRecord, aside_table
from legato.bench.batch_tables import batch_tables, price
from legato.bench.facts import Machine, ModelFacts
from legato.bench.grid import Grid
from legato.bench.memory import MemoryRecord, memory_tables
from legato.bench.page import Plot, to_page
from legato.bench.records import BatchRecord, RequestRecord
from legato.bench.request_plots import batch_plots, request_plots
from legato.bench.request_tables import request_tables
from legato.bench.steps_chapter import steps_chapter
from legato.bench.steps_records import CeilingsRecord, StepRecord, TurnRecord
from legato.bench.summary import summaries

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

REPORT_SCHEMA = "legato-bench-report-1"
KINDS: Mapping[str, type[DataclassInstance]] = {
    "request": RequestRecord,
    "aside": AsideRecord,
    "batch": BatchRecord,
    "ceilings": CeilingsRecord,
    "step": StepRecord,
    "turn": TurnRecord,
    "memory": MemoryRecord,
}

Records = Sequence["DataclassInstance"]


def request_chapter(records: Records) -> Iterator[Grid | Plot]:
    """Latency and load."""
    requests = [record for record in records if isinstance(record, RequestRecord)]
    if requests:
        yield from request_plots(requests)
        yield from request_tables(requests)
    asides = [record for record in records if isinstance(record, AsideRecord)]
    if asides:
        yield aside_table(asides)


def batch_chapter(records: Records) -> Iterator[Grid | Plot]:
    """Throughput against batch size."""
    batches = [record for record in records if isinstance(record, BatchRecord)]
    yield from batch_plots(batches)
    yield from batch_tables(batches)


def memory_chapter(records: Records) -> Iterator[Grid | Plot]:
    """Memory with all slots in use."""
    yield from memory_tables([record for record in records if isinstance(record, MemoryRecord)])


CHAPTERS = (request_chapter, batch_chapter, steps_chapter, memory_chapter)


def tables(records: Records) -> list[Grid]:
    """What a terminal shows."""
    return [part for chapter in CHAPTERS for part in chapter(records) if isinstance(part, Grid)]


def to_html(records: Records, title: str) -> str:
    """The page."""
    return to_page(title, facts_of(records), [part for chapter in CHAPTERS for part in chapter(records)])


def to_json(records: Records) -> str:
    """Every summary with full digits, and what the figures depend on."""
    batches = [record for record in records if isinstance(record, BatchRecord)]
    value = {
        "schema": REPORT_SCHEMA,
        "facts": dict(facts_of(records)),
        "cases": [asdict(each) for each in summaries(each for each in records if isinstance(each, RequestRecord))],
        "asides": [asdict(record) for record in records if isinstance(record, AsideRecord)],
        "batches": [asdict(record) for record in batches],
        "price_of_determinism": {str(streams): times for streams, times in price(batches).items()},
    }
    return json.dumps(value, ensure_ascii=False, indent=1, allow_nan=False) + "\n"


def facts_of(records: Records) -> list[tuple[str, str]]:
    """What all figures depend on; several values where the records differ."""
    facts: dict[str, dict[str, None]] = {}
    for record in records:
        for part in (getattr(record, "model", None), getattr(record, "machine", None)):
            for field in fields(part) if isinstance(part, Machine | ModelFacts) else ():
                value = getattr(part, field.name)
                shown = f"{value:,}" if type(value) is int else str(value)
                facts.setdefault(field.name.replace("_", " "), {})[shown] = None
    told = [(name, "; ".join(filter(None, values))) for name, values in facts.items() if any(values)]
    return told + _request_facts([record for record in records if isinstance(record, RequestRecord)])


def _request_facts(records: Sequence[RequestRecord]) -> list[tuple[str, str]]:
    """Sizes of what was asked and said, and what the times contain."""
    if not records:
        return []
    sounds = [(record, sound) for record in records for sound in record.sounds]
    seconds = [sound.samples / record.model.sample_rate_hz for record, sound in sounds]
    inside = [record.asked.inside for record in records]
    contained = {
        "text front end": any(each.text_front_end for each in inside),
        "reference encoding": any(each.reference_encoding for each in inside),
        "copies from the device": any(each.device_copies for each in inside),
    }
    return [
        ("input characters", _range([record.asked.input_characters for record in records])),
        ("input tokens", _range([sound.input_tokens for _, sound in sounds])),
        ("seconds of sound", _range(seconds)),
        ("packet frames", "; ".join(dict.fromkeys(str(list(each.asked.packet_frames)) for each in records))),
        ("inside the times", ", ".join(name for name, there in contained.items() if there)),
        ("not inside", ", ".join(name for name, there in contained.items() if not there) or "nothing"),
        ("stage ends", "; ".join(dict.fromkeys(_end(record.settled) for record in records))),
    ]


def _end(settled: bool) -> str:
    return "the device was waited for" if settled else "host clock"


def _range(values: Sequence[float]) -> str:
    if not values:
        return "none"
    least, most = min(values), max(values)
    return f"{least:.4g}" if least == most else f"{least:.4g} to {most:.4g}"
