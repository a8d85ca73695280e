"""`legato bench batch` reports every batch size in both modes. Speed is not judged here."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from legato.bench.batch import batch_tables, deterministic_slowdown
from legato.bench.jsonl import read_lines
from legato.bench.records import RECORD_TYPES, BatchRecord
from legato.cli.main import EXIT_OK, EXIT_USAGE, main
from tests.bench.sample_records import MODEL, make_batch
from tests.conftest import TinyCheckpoint


def test_deterministic_slowdown_is_the_ratio_of_total_rates() -> None:
    rows = [make_batch("default", 4, 40.0), make_batch("deterministic", 4, 16.0), make_batch("default", 8, 50.0)]
    assert deterministic_slowdown(rows) == {4: 2.5}
    (table,) = batch_tables(rows)
    assert "2.50x (4 streams)" in table.note
    assert [each[:2] for each in table.rows] == [("default", "4"), ("deterministic", "4"), ("default", "8")]


def test_each_model_has_its_own_table() -> None:
    rows = [make_batch("default", 1, 4.0), replace(make_batch("default", 1, 5.0), model=replace(MODEL, name="other"))]
    assert [table.title.rpartition(": ")[2] for table in batch_tables(rows)] == ["tiny", "other"]


def test_batch_command_reports_all_sizes_in_both_modes(
    tiny_checkpoint: TinyCheckpoint, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    figures, lines = tmp_path / "figures.json", tmp_path / "records.jsonl"
    folder = str(tiny_checkpoint("tiny-custom-voice"))
    options = ["--batches", "1,3", "--frames", "4", "--max-seq-len", "128", "--threads", "1"]
    assert main(["bench", "batch", folder, *options, "--json", str(figures), "--records", str(lines)]) == EXIT_OK
    assert "Time of deterministic mode relative to the default: " in capsys.readouterr().out
    records = list(read_lines(lines, RECORD_TYPES))
    got = json.loads(figures.read_text())
    expected = [(1, "default"), (1, "deterministic"), (3, "default"), (3, "deterministic")]
    assert [(each["streams"], each["mode"]) for each in got["batches"]] == expected
    for record in records:
        assert isinstance(record, BatchRecord)
        assert record.frames == 4 * record.streams
        parts = (record.talker_frames_per_s, record.predictor_frames_per_s, record.codec_frames_per_s)
        assert all(rate > 0 for rate in (*parts, record.total_frames_per_s, record.audio_s_per_s))
        assert record.total_frames_per_s <= min(record.predictor_frames_per_s, record.codec_frames_per_s)
        assert record.peak_bytes > record.slot_bytes > 0
        assert (record.packet_frames, record.machine.threads) == ((4,), 1)
    assert set(got["deterministic_slowdown"]) == {"1", "3"}


def test_invalid_batches_option_is_rejected(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "batch", "--batches", "1,x"]) == EXIT_USAGE
    assert "--batches" in capsys.readouterr().err
