"""`legato bench latency` and `load` from command line to files with a tiny model; help texts and documentation."""

from __future__ import annotations

import json
import re
from pathlib import Path

import click
import pytest

from legato.backends.select import load_backend
from legato.bench.jsonl import read_lines
from legato.bench.records import RECORD_TYPES, RequestRecord, SideCostRecord
from legato.bench.summary import summaries
from legato.cli.bench import SUBCOMMANDS, bench
from legato.cli.bench_latency import latency, rebuild_arguments
from legato.cli.main import EXIT_OK, main
from legato.config.engine import EngineConfig
from tests.conftest import TinyCheckpoint

SHORT = ["--max-frames", "4", "--packet-frames", "1,2", "--max-seq-len", "256", "--threads", "1", "--text", "Hello."]


def side_costs(file: Path) -> dict[str, tuple[str, int]]:
    """The stage and the number of repetitions of each side cost."""
    found = [record for record in read_lines(file, RECORD_TYPES) if isinstance(record, SideCostRecord)]
    assert all(min(record.times_ms) > 0 for record in found)
    return {record.operation.partition(",")[0]: (record.stage, len(record.times_ms)) for record in found}


def requests(file: Path) -> list[RequestRecord]:
    return [record for record in read_lines(file, RECORD_TYPES) if isinstance(record, RequestRecord)]


def test_latency_command_writes_records_and_page(
    tiny_checkpoint: TinyCheckpoint, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, page = tmp_path / "records.jsonl", tmp_path / "page.html"
    folder = str(tiny_checkpoint("tiny-custom-voice"))
    line = ["bench", "latency", folder, *SHORT, "--requests", "1", "--warm-up", "1", "--records", str(file)]
    assert main([*line, "--html", str(page)]) == EXIT_OK
    records = requests(file)
    assert [record.request.transport for record in records] == ["in-process", "in-process", "http", "websocket"]
    assert [record.request.cold for record in records] == [True, False, False, False]
    assert all(record.request.packet_frames == (1, 2) and record.synchronized for record in records)
    assert side_costs(file) == {"text front end": ("input wait", 1)}
    output = capsys.readouterr().out
    assert "Operations inside a stage, measured separately" in output
    assert "unaccounted" in output
    assert "published elsewhere, not measured" in output
    assert "<svg" in page.read_text()


def test_reference_encoding_is_recorded_where_the_times_include_it(
    tiny_checkpoint: TinyCheckpoint, tmp_path: Path
) -> None:
    file = tmp_path / "records.jsonl"
    line = ["bench", "latency", str(tiny_checkpoint("tiny-base")), *SHORT, "--requests", "1", "--warm-up", "0"]
    assert main([*line, "--records", str(file)]) == EXIT_OK
    included = [(record.request.transport, record.request.included.reference_encoding) for record in requests(file)]
    assert included == [("in-process", True), ("http", True), ("websocket", False)]
    assert side_costs(file) == {"text front end": ("input wait", 1), "reference encoding": ("request", 1)}


def test_load_command_writes_records(tiny_checkpoint: TinyCheckpoint, tmp_path: Path) -> None:
    file = tmp_path / "records.jsonl"
    line = ["bench", "load", str(tiny_checkpoint("tiny-custom-voice")), *SHORT, "--transport", "in-process"]
    assert main([*line, "--concurrency", "1,2", "--requests", "2", "--records", str(file)]) == EXIT_OK
    assert [record.request.concurrency for record in requests(file)] == [1, 1, 2, 2]
    assert main([*line, "--rates", "50", "--max-num-seqs", "2", "--requests", "2", "--records", str(file)]) == EXIT_OK
    assert [(record.request.loop, record.request.rate_hz) for record in requests(file)] == [("open", 50.0)] * 2


@pytest.mark.parametrize(
    ("command", "options"),
    [
        ("latency", [*SHORT, "--transport", "in-process", "--requests", "1", "--warm-up", "0"]),
        ("load", [*SHORT, "--transport", "in-process", "--requests", "1", "--concurrency", "1"]),
        ("batch", ["--batches", "1", "--frames", "2", "--max-seq-len", "128", "--threads", "1"]),
        ("memory", ["--max-num-seqs", "1", "--frames", "2", "--max-seq-len", "128", "--threads", "1"]),
    ],
)
def test_cuda_graphs_option_reaches_every_engine_and_backends_are_recorded(
    command: str,
    options: list[str],
    tiny_checkpoint: TinyCheckpoint,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    created: list[bool] = []
    check = EngineConfig.__post_init__

    def recording(config: EngineConfig) -> None:
        created.append(config.cuda_graphs)
        check(config)

    monkeypatch.setattr(EngineConfig, "__post_init__", recording)
    file, folder = tmp_path / "records.jsonl", tiny_checkpoint("tiny-custom-voice")
    line = ["bench", command, str(folder), *options, "--records", str(file)]
    notes = load_backend(folder).description
    for flags in ([], ["--no-cuda-graphs"]):
        created.clear()
        assert main([*line, *flags]) == EXIT_OK
        assert set(created) == {not flags}
        output = capsys.readouterr().err
        assert all(f"legato: {note}\n" in output for note in notes)
        # The option has no effect on a CPU and is not recorded.
        metadata = [json.loads(record)["model"] for record in file.read_text(encoding="utf-8").splitlines()]
        assert {each["backend"] for each in metadata} == {"; ".join(notes)}


def test_repeated_run_has_the_same_command_line() -> None:
    line = ["./model", "--packet-frames", "4,8", "--text", "One.", "--text", "Two.", "--processes", "3", "--seed", "5"]
    for flags in ([], ["--no-cuda-graphs"]):
        context = latency.make_context("latency", [*line, *flags])
        changed: dict[str, object] = {"processes": 1, "run": 2, "records": Path("r.jsonl")}
        again = rebuild_arguments(context, {**changed, "json_file": None, "html": None})
        other = latency.make_context("latency", again)
        assert other.params == {**context.params, **changed}
        assert other.params["cuda_graphs"] == (not flags)


def test_every_command_help_has_an_example() -> None:
    context = click.Context(bench)
    for name in SUBCOMMANDS:
        command = bench.get_command(context, name)
        assert command is not None
        assert f"legato bench {name}" in (command.epilog or "")
        assert command.short_help


def test_docs_explain_every_field_and_command() -> None:
    page = (Path(__file__).parents[2] / "docs" / "bench.md").read_text(encoding="utf-8")
    documented = set(re.findall(r"`([a-z_A-Z0-9.]+)`", page))
    for name in field_names(RequestRecord) | field_names(SideCostRecord):
        assert name in documented, name
    assert all(f"legato bench {name}" in page for name in SUBCOMMANDS)


def test_docs_table_matches_the_kept_records() -> None:
    """Every row of the table in the docs is a case of the records in `docs/bench`."""
    docs = Path(__file__).parents[2] / "docs"
    files = [docs / "bench" / name for name in ("embedded-latency.jsonl", "embedded-load.jsonl")]
    cases = summaries(record for file in files for record in requests(file))
    rows = [
        f"| {each.case.request.transport}, {'cold' if each.case.request.cold else 'warm'}, "
        f"{each.case.request.concurrency} concurrent, packets {','.join(map(str, each.case.request.packet_frames))} "
        f"| {each.first_packet_ms.p50:.0f} | {each.first_sound_ms.p50:.0f} | {each.first_audible_ms.p50:.0f} "
        f"| {each.real_time_factor.p50:.2f} | {each.audio_s_per_s:.1f} |"
        for each in cases
    ]
    lines = (docs / "bench.md").read_text(encoding="utf-8").splitlines()
    assert len(rows) == 7
    assert [row for row in rows if row not in lines] == []
    assert "machine" in json.loads(files[0].read_text(encoding="utf-8").splitlines()[0])


def field_names(record: type) -> set[str]:
    """Field names of a record and of the dataclasses in it."""
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
