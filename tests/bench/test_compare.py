"""Quotients are of a request with itself, what differs is told, and strangers are not paired."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from legato.bench.compare import HIGHER, LOWER, compare, comparison_tables
from legato.bench.jsonl import to_json, write_lines
from legato.bench.records import ALL_STAGES, BatchRecord, RequestRecord
from legato.cli.main import EXIT_OK, EXIT_REFUSED, main
from tests.bench.made import MACHINE, MODEL, asked, record, sound


def times(factor: float, count: int = 5) -> list[RequestRecord]:
    """Requests whose stages grow with their number, all of them `factor` times as long."""
    return [
        record(asked(number), sounds=(sound([factor * (number + 1)] * len(ALL_STAGES)),)) for number in range(count)
    ]


@given(st.floats(0.1, 10.0))
def test_a_run_that_takes_so_many_times_as_long_has_that_quotient(factor: float) -> None:
    found = compare(times(1.0), times(factor))
    ratio = next(each for each in found.ratios if each.name == "first packet, ms")
    assert (ratio.pairs, ratio.faster) == (5, LOWER)
    assert [ratio.typical, ratio.least, ratio.p10, ratio.p90, ratio.most] == pytest.approx([factor] * 5)
    assert ratio.b_faster == (5 if factor < 1 else 0)
    assert found.unpaired == 0
    assert found.differing == ()


def test_comparing_both_ways_gives_the_inverse() -> None:
    a, b = times(1.0), [*times(0.5)[:2], *times(3.0)[2:]]
    there, back = compare(a, b).ratios, compare(b, a).ratios
    for one, other in zip(there, back, strict=True):
        assert one.typical * other.typical == pytest.approx(1.0)
    first = next(each for each in there if each.name == "first packet, ms")
    assert [first.least, first.most] == pytest.approx([0.5, 3.0])
    assert first.b_faster == 2


def test_only_what_was_asked_alike_is_paired() -> None:
    assert not compare([record(asked(0))], [record(asked(0, concurrency=3))]).ratios
    assert not compare([record(asked(0))], [record(asked(0, transport="http"))]).ratios
    assert not compare([record(asked(0))], [record(replace(asked(0), packet_frames=(1,)))]).ratios
    found = compare([record(asked(0)), record(asked(1))], [record(asked(1)), record(asked(2))])
    assert {ratio.pairs for ratio in found.ratios} == {1}
    assert found.unpaired == 2 * len(found.ratios)


def test_what_differs_is_told_and_no_reason_not_to_pair() -> None:
    other = [replace(each, model=replace(MODEL, talker_dtype="bfloat16")) for each in times(1.0)]
    found = compare(times(1.0), other)
    assert found.differing == (("talker dtype", "float32", "bfloat16"),)
    assert {ratio.typical for ratio in found.ratios} == {1.0}


def test_of_rates_the_higher_one_is_faster() -> None:
    row = BatchRecord(MACHINE, MODEL, (4,), 128, "default", 4, 8, 1.0, 1.0, 1.0, 20.0, 1.0, 0.1, 0.1, 1.0, 1, 1)
    (ratio,) = compare([row], [replace(row, total_frames_s=30.0)]).ratios
    assert ratio.typical == pytest.approx(1.5)
    assert (ratio.faster, ratio.b_faster) == (HIGHER, 1)


def written(path: Path, records: list[RequestRecord]) -> str:
    write_lines(path, (to_json("request", each) for each in records))
    return str(path)


def test_the_command_prints_quotients_and_writes_a_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, b = written(tmp_path / "a.jsonl", times(1.0)), written(tmp_path / "b.jsonl", times(2.0))
    page, figures = tmp_path / "page.html", tmp_path / "figures.json"
    assert main(["bench", "compare", a, b, "--html", str(page), "--json", str(figures)]) == EXIT_OK
    told = capsys.readouterr().out
    assert "nothing that was recorded" in told
    assert "2.000" in told
    assert "2.000" in page.read_text()
    assert '"typical": 2.0' in figures.read_text()


def test_files_with_nothing_in_common_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a = written(tmp_path / "a.jsonl", [record(asked(0))])
    b = written(tmp_path / "b.jsonl", [record(asked(0, concurrency=3))])
    assert main(["bench", "compare", a, b]) == EXIT_REFUSED
    assert "nothing that was asked alike" in capsys.readouterr().err


def test_every_table_says_what_a_pair_is() -> None:
    differs, *tables = comparison_tables(compare(times(1.0), times(2.0)))
    assert differs.title == "What differs"
    assert all("one request asked of both" in table.note for table in tables)
