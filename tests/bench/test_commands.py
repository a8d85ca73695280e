"""`legato bench latency` and `load` from the command line to their files, with a tiny model; and that help teaches."""

from __future__ import annotations

import json
import re
from pathlib import Path

import click
import pytest

from legato.bench.asides import AsideRecord
from legato.bench.jsonl import read_lines
from legato.bench.records import RequestRecord
from legato.bench.report import KINDS
from legato.bench.summary import summaries
from legato.cli.bench import SUBCOMMANDS, bench
from legato.cli.bench_latency import latency, words
from legato.cli.main import EXIT_OK, main
from legato.config.engine import EngineConfig
from legato.engine.notes import notes_of
from legato.models.load import load_model
from tests.conftest import TinyCheckpoint

SHORT = ["--max-frames", "4", "--packet-frames", "1,2", "--positions", "256", "--threads", "1", "--text", "Hello."]


def asides(file: Path) -> dict[str, tuple[str, int]]:
    """What was done by itself: inside which stage, and how often."""
    found = [record for record in read_lines(file, KINDS) if isinstance(record, AsideRecord)]
    assert all(min(record.times_ms) > 0 for record in found)
    return {record.what.partition(",")[0]: (record.inside, len(record.times_ms)) for record in found}


def requests(file: Path) -> list[RequestRecord]:
    return [record for record in read_lines(file, KINDS) if isinstance(record, RequestRecord)]


def test_latency_from_end_to_end(
    tiny_checkpoint: TinyCheckpoint, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, page = tmp_path / "records.jsonl", tmp_path / "page.html"
    folder = str(tiny_checkpoint("tiny-custom-voice"))
    line = ["bench", "latency", folder, *SHORT, "--requests", "1", "--warm-up", "1", "--records", str(file)]
    assert main([*line, "--html", str(page)]) == EXIT_OK
    records = requests(file)
    assert [record.asked.transport for record in records] == ["in-process", "in-process", "http", "websocket"]
    assert [record.asked.cold for record in records] == [True, False, False, False]
    assert all(record.asked.packet_frames == (1, 2) and record.settled for record in records)
    assert asides(file) == {"text front end": ("input wait", 1)}
    told = capsys.readouterr().out
    assert "What lies inside a stage, done by itself" in told
    assert "unaccounted" in told
    assert "published elsewhere, not measured" in told
    assert "<svg" in page.read_text()


def test_a_model_that_clones_has_its_reference_inside_where_it_is_encoded_inside(
    tiny_checkpoint: TinyCheckpoint, tmp_path: Path
) -> None:
    file = tmp_path / "records.jsonl"
    line = ["bench", "latency", str(tiny_checkpoint("tiny-base")), *SHORT, "--requests", "1", "--warm-up", "0"]
    assert main([*line, "--records", str(file)]) == EXIT_OK
    told = [(record.asked.transport, record.asked.inside.reference_encoding) for record in requests(file)]
    assert told == [("in-process", True), ("http", True), ("websocket", False)]
    assert asides(file) == {"text front end": ("input wait", 1), "reference encoding": ("request", 1)}


def test_load_from_end_to_end(tiny_checkpoint: TinyCheckpoint, tmp_path: Path) -> None:
    file = tmp_path / "records.jsonl"
    line = ["bench", "load", str(tiny_checkpoint("tiny-custom-voice")), *SHORT, "--transport", "in-process"]
    assert main([*line, "--at-once", "1,2", "--requests", "2", "--records", str(file)]) == EXIT_OK
    assert [record.asked.concurrency for record in requests(file)] == [1, 1, 2, 2]
    assert main([*line, "--rates", "50", "--slots", "2", "--requests", "2", "--records", str(file)]) == EXIT_OK
    assert [(record.asked.loop, record.asked.rate_hz) for record in requests(file)] == [("open", 50.0)] * 2


@pytest.mark.parametrize(
    ("command", "options"),
    [
        ("latency", [*SHORT, "--transport", "in-process", "--requests", "1", "--warm-up", "0"]),
        ("load", [*SHORT, "--transport", "in-process", "--requests", "1", "--at-once", "1"]),
        ("batch", ["--batches", "1", "--frames", "2", "--positions", "128", "--threads", "1"]),
        ("memory", ["--streams", "1", "--frames", "2", "--positions", "128", "--threads", "1"]),
    ],
)
def test_the_switch_of_graphs_reaches_every_engine_and_records_say_what_computed(
    command: str,
    options: list[str],
    tiny_checkpoint: TinyCheckpoint,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[bool] = []
    check = EngineConfig.__post_init__

    def noticed(config: EngineConfig) -> None:
        made.append(config.graphs)
        check(config)

    monkeypatch.setattr(EngineConfig, "__post_init__", noticed)
    file, folder = tmp_path / "records.jsonl", tiny_checkpoint("tiny-custom-voice")
    line = ["bench", command, str(folder), *options, "--records", str(file)]
    notes = notes_of(load_model(folder))
    for flags in ([], ["--no-graphs"]):
        made.clear()
        assert main([*line, *flags]) == EXIT_OK
        assert set(made) == {not flags}
        told = capsys.readouterr().err
        assert all(f"legato: {note}\n" in told for note in notes)
        # On a CPU the switch changes nothing, and nothing is said of it.
        facts = [json.loads(record)["model"] for record in file.read_text(encoding="utf-8").splitlines()]
        assert {each["computed_by"] for each in facts} == {"; ".join(notes)}


def test_a_repeated_run_is_the_same_command_again() -> None:
    line = ["./model", "--packet-frames", "4,8", "--text", "One.", "--text", "Two.", "--processes", "3", "--seed", "5"]
    for flags in ([], ["--no-graphs"]):
        context = latency.make_context("latency", [*line, *flags])
        again = words(context, {"processes": 1, "run": 2, "records": Path("r.jsonl"), "json_file": None, "html": None})
        other = latency.make_context("latency", again)
        changed = {"processes": 1, "run": 2, "records": Path("r.jsonl")}
        assert other.params == {**context.params, **changed}
        assert other.params["graphs"] == (not flags)


def test_every_command_teaches_by_example() -> None:
    context = click.Context(bench)
    for name in SUBCOMMANDS:
        command = bench.get_command(context, name)
        assert command is not None
        assert f"legato bench {name}" in (command.epilog or "")
        assert command.short_help


def test_the_page_of_the_docs_explains_every_field_and_command() -> None:
    page = (Path(__file__).parents[2] / "docs" / "bench.md").read_text(encoding="utf-8")
    told = set(re.findall(r"`([a-z_A-Z0-9.]+)`", page))
    for name in field_names(RequestRecord) | field_names(AsideRecord):
        assert name in told, name
    assert all(f"legato bench {name}" in page for name in SUBCOMMANDS)


def test_the_example_is_read_and_the_figures_beside_it_are_its_own() -> None:
    """Every row of the table in the docs is a case of the records in `docs/bench`, rounded."""
    docs = Path(__file__).parents[2] / "docs"
    files = [docs / "bench" / name for name in ("embedded-latency.jsonl", "embedded-load.jsonl")]
    cases = summaries(record for file in files for record in requests(file))
    rows = [
        f"| {each.case.asked.transport}, {'cold' if each.case.asked.cold else 'warm'}, "
        f"{each.case.asked.concurrency} at once, packets {','.join(map(str, each.case.asked.packet_frames))} "
        f"| {each.first_packet_ms.p50:.0f} | {each.first_sound_ms.p50:.0f} | {each.first_audible_ms.p50:.0f} "
        f"| {each.real_time_factor.p50:.2f} | {each.audio_s_per_s:.1f} |"
        for each in cases
    ]
    told = (docs / "bench.md").read_text(encoding="utf-8").splitlines()
    assert len(rows) == 7
    assert [row for row in rows if row not in told] == []
    assert "machine" in json.loads(files[0].read_text(encoding="utf-8").splitlines()[0])


def field_names(record: type) -> set[str]:
    """All names of a record and of the records in it."""
    from dataclasses import fields, is_dataclass
    from typing import get_args, get_type_hints

    found: set[str] = set()
    for field in fields(record):
        found.add(field.name)
        kind = get_type_hints(record)[field.name]
        for inner in (kind, *get_args(kind)):
            if isinstance(inner, type) and is_dataclass(inner):
                found |= field_names(inner)
    return found
