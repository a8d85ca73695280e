"""Comparison pairs equal requests only, reports their ratios, and lists what differs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from legato.bench.compare import HIGHER, LOWER, compare, comparison_tables
from legato.bench.jsonl import to_json, write_lines
from legato.bench.records import ALL_STAGES, RequestRecord
from legato.cli.main import EXIT_OK, EXIT_USAGE, main
from tests.bench.sample_records import MODEL, make_audio, make_batch, make_record, make_request


def times(factor: float, count: int = 5) -> list[RequestRecord]:
    """Requests whose stages grow with their number, scaled by `factor`."""
    return [
        make_record(make_request(number), audio=make_audio([factor * (number + 1)] * len(ALL_STAGES)))
        for number in range(count)
    ]


@given(st.floats(0.1, 10.0))
def test_ratio_equals_the_factor_between_two_runs(factor: float) -> None:
    found = compare(times(1.0), times(factor))
    ratio = next(each for each in found.ratios if each.name == "TTFA, ms")
    assert (ratio.pairs, ratio.direction) == (5, LOWER)
    assert [ratio.geometric_mean, ratio.minimum, ratio.p10, ratio.p90, ratio.maximum] == pytest.approx([factor] * 5)
    assert ratio.b_faster == (5 if factor < 1 else 0)
    assert found.unpaired == 0
    assert found.differences == ()


def test_swapping_a_and_b_inverts_the_ratios() -> None:
    a, b = times(1.0), [*times(0.5)[:2], *times(3.0)[2:]]
    there, back = compare(a, b).ratios, compare(b, a).ratios
    for one, other in zip(there, back, strict=True):
        assert one.geometric_mean * other.geometric_mean == pytest.approx(1.0)
    first = next(each for each in there if each.name == "TTFA, ms")
    assert [first.minimum, first.maximum] == pytest.approx([0.5, 3.0])
    assert first.b_faster == 2


def test_only_equal_requests_are_paired() -> None:
    assert not compare([make_record(make_request(0))], [make_record(make_request(0, concurrency=3))]).ratios
    assert not compare([make_record(make_request(0))], [make_record(make_request(0, transport="http"))]).ratios
    assert not compare(
        [make_record(make_request(0))], [make_record(replace(make_request(0), packet_frames=(1,)))]
    ).ratios
    found = compare(
        [make_record(make_request(0)), make_record(make_request(1))],
        [make_record(make_request(1)), make_record(make_request(2))],
    )
    assert {ratio.pairs for ratio in found.ratios} == {1}
    assert found.unpaired == 2 * len(found.ratios)


def test_differences_are_listed_and_do_not_prevent_pairing() -> None:
    other = [replace(each, model=replace(MODEL, talker_dtype="bfloat16")) for each in times(1.0)]
    found = compare(times(1.0), other)
    assert found.differences == (("talker dtype", "float32", "bfloat16"),)
    assert {ratio.geometric_mean for ratio in found.ratios} == {1.0}


def test_higher_rate_is_faster() -> None:
    row = make_batch(total_frames_per_s=20.0)
    (ratio,) = compare([row], [replace(row, total_frames_per_s=30.0)]).ratios
    assert ratio.geometric_mean == pytest.approx(1.5)
    assert (ratio.direction, ratio.b_faster) == (HIGHER, 1)


def written(path: Path, records: list[RequestRecord]) -> str:
    write_lines(path, (to_json("request", each) for each in records))
    return str(path)


def test_compare_command_prints_ratios_and_writes_html_and_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a, b = written(tmp_path / "a.jsonl", times(1.0)), written(tmp_path / "b.jsonl", times(2.0))
    page, figures = tmp_path / "page.html", tmp_path / "figures.json"
    assert main(["bench", "compare", a, b, "--html", str(page), "--json", str(figures)]) == EXIT_OK
    output = capsys.readouterr().out
    assert "none recorded" in output
    assert "2.000" in output
    assert "2.000" in page.read_text()
    assert '"geometric_mean": 2.0' in figures.read_text()


def test_files_without_common_requests_are_rejected(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a = written(tmp_path / "a.jsonl", [make_record(make_request(0))])
    b = written(tmp_path / "b.jsonl", [make_record(make_request(0, concurrency=3))])
    assert main(["bench", "compare", a, b]) == EXIT_USAGE
    assert "no request in common" in capsys.readouterr().err


def test_every_ratio_table_explains_pairs() -> None:
    differs, *tables = comparison_tables(compare(times(1.0), times(2.0)))
    assert differs.title == "Differences"
    assert all("the same request in both files" in table.note for table in tables)
