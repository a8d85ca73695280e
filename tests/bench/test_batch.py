"""`legato bench batch` reports every batch size in both modes, with its setting. No figure of speed is judged here."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from legato.bench.report import Row, price
from legato.cli.main import EXIT_OK, EXIT_REFUSED, main
from tests.conftest import TinyCheckpoint


def row(mode: str, streams: int, rate: float) -> Row:
    return Row(mode, streams, 8, 1.0, 1.0, 1.0, rate, 1.0, 0.1, 0.1, 1.0, 1, 1)


def test_the_price_of_determinism_is_the_quotient_of_the_totals() -> None:
    rows = [row("default", 4, 40.0), row("deterministic", 4, 16.0), row("default", 8, 50.0)]
    assert price(rows) == {4: 2.5}


def test_the_command_reports_all_batches_in_both_modes(
    tiny_checkpoint: TinyCheckpoint, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    figures = tmp_path / "figures.json"
    folder = str(tiny_checkpoint("tiny-custom-voice"))
    options = ["--batches", "1,3", "--frames", "4", "--positions", "128", "--threads", "1", "--json", str(figures)]
    assert main(["bench", "batch", folder, *options]) == EXIT_OK
    told = capsys.readouterr().out
    assert told.count("deterministic mode takes") == 2
    got = json.loads(figures.read_text())
    assert [(each["streams"], each["mode"]) for each in got["rows"]] == [
        (1, "default"),
        (1, "deterministic"),
        (3, "default"),
        (3, "deterministic"),
    ]
    for each in got["rows"]:
        assert each["frames"] == 4 * each["streams"]
        rates = ("talker_frames_s", "predictor_frames_s", "codec_frames_s", "total_frames_s", "audio_s_per_s")
        assert all(each[name] > 0 for name in rates)
        assert each["total_frames_s"] <= min(each["predictor_frames_s"], each["codec_frames_s"])
        assert each["peak_bytes"] > each["slot_bytes"] > 0
    assert got["setting"]["packet_frames"] == [4]
    assert set(got["price_of_determinism"]) == {"1", "3"}


def test_nonsense_batches_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "batch", "--batches", "1,x"]) == EXIT_REFUSED
    assert "--batches" in capsys.readouterr().err
