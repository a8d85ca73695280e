"""The script of the peers: ratios are taken within a round, and a round is timed from call to last samples.

No peer is installed in the test environment, so the loaders of the peers are not tested.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.peers.report import Result, ratio_rows, report, system_rows
from benchmarks.peers.run import model_of, read_results
from benchmarks.peers.worker import RATE_HZ, timed_round


def result(system: str, run: str, at: int, total_s: float) -> Result:
    return Result(
        system=system,
        variant="q8",
        version="1",
        run=run,
        round=at,
        threads=2,
        packet_frames=4,
        first_s=total_s / 2,
        total_s=total_s,
        audio_s=1.0,
    )


RESULTS = [
    result("legato", "a", 1, 1.0),
    result("vox-tts", "a", 1, 3.0),
    result("legato", "a", 2, 10.0),
    result("vox-tts", "a", 2, 20.0),
    result("legato", "b", 1, 2.0),
    result("vox-tts", "b", 1, 8.0),
    result("vox-tts", "b", 2, 99.0),
]


def test_ratios_are_taken_within_a_round() -> None:
    assert ratio_rows(RESULTS) == [("vox-tts 1 q8", "legato 1 q8", "3", "3.00 (2.00..4.00)")]


def test_fastest_system_comes_first() -> None:
    rows = system_rows(RESULTS)
    assert [row[0] for row in rows] == ["legato 1 q8", "vox-tts 1 q8"]
    assert rows[0][1:] == ("3", "2.00 (1.00..10.00)", "1.00 (0.50..5.00)")
    assert report(RESULTS).count("| vox-tts 1 q8 |") == 2


def test_round_counts_all_samples_and_times_the_first() -> None:
    def synthesize(seed: int) -> Iterator[int]:
        assert seed == 7
        yield RATE_HZ
        yield RATE_HZ // 2

    got = timed_round(synthesize, 7, "pytest")
    assert (got.round, got.audio_s) == (7, 1.5)
    assert 0 <= got.first_s <= got.total_s


def test_peer_without_its_files_is_skipped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert model_of("native-cpu", "gguf", tmp_path, tmp_path, tmp_path, ()) is None
    assert "--gguf" in capsys.readouterr().err
    assert model_of("qwen-tts", "bfloat16", tmp_path, tmp_path, tmp_path, ()) == (tmp_path,)


def test_missing_records_file_has_no_results(tmp_path: Path) -> None:
    assert read_results(tmp_path / "none.jsonl") == []
