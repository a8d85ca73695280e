"""`legato bench contention`: busy processes are started and stopped, and ratios are those to the idle machine."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from legato.bench.contention import busy_processes, contention_tables
from legato.bench.jsonl import read_lines
from legato.bench.records import RECORD_TYPES, ContentionRecord
from legato.cli.main import EXIT_OK, EXIT_USAGE, main
from tests.bench.sample_records import MACHINE, MODEL
from tests.conftest import TinyCheckpoint

RECORD = ContentionRecord(
    machine=MACHINE,
    model=MODEL,
    packet_frames=(4,),
    round=0,
    busy_processes=0,
    threads=1,
    frames=24,
    total_s=1.92,
    real_time_factor=1.0,
)


def test_busy_processes_run_inside_the_block_only() -> None:
    with busy_processes(2) as processes:
        assert [process.poll() for process in processes] == [None, None]
    assert all(process.returncode is not None for process in processes)


def test_ratios_are_relative_to_the_idle_machine() -> None:
    rtf = {(0, 1): (1.0, 1.2, 1.1), (0, 2): (0.5, 0.5, 0.5), (1, 1): (1.3, 1.4, 1.2), (1, 2): (1.1, 1.1, 1.1)}
    records = [
        replace(RECORD, round=number, busy_processes=busy, threads=threads, real_time_factor=value)
        for (busy, threads), values in rtf.items()
        for number, value in enumerate(values)
    ]
    (table,) = contention_tables(records)
    assert table.headings[-2:] == ("/ idle, 1 thr.", "/ idle, 2 thr.")
    assert table.rows == (
        ("0", "1", "1.100", "1.000 to 1.200", "1.00", "2.20"),
        ("0", "2", "0.500", "0.500 to 0.500", "0.45", "1.00"),
        ("1", "1", "1.300", "1.200 to 1.400", "1.18", "2.60"),
        ("1", "2", "1.100", "1.100 to 1.100", "1.00", "2.20"),
    )


def test_every_case_is_measured_in_every_round(tiny_checkpoint: TinyCheckpoint, tmp_path: Path) -> None:
    file = tmp_path / "contention.jsonl"
    line = ["bench", "contention", str(tiny_checkpoint("tiny-custom-voice")), "--busy", "1", "--frames", "2"]
    line += ["--rounds", "2", "--threads", "2", "--packet-frames", "2", "--records", str(file)]
    assert main(line) == EXIT_OK
    records = [record for record in read_lines(file, RECORD_TYPES) if isinstance(record, ContentionRecord)]
    cases = [(record.round, record.busy_processes, record.threads) for record in records]
    assert cases == [(number, busy, threads) for number in (0, 1) for busy in (0, 1) for threads in (1, 2)]
    assert all(record.machine.threads == record.threads for record in records)
    assert all(record.packet_frames == (2,) and record.total_s > 0 for record in records)
    assert os.listdir(tmp_path) == ["contention.jsonl"]


def test_other_devices_are_refused() -> None:
    assert main(["bench", "contention", "--device", "cuda"]) == EXIT_USAGE
