"""Reports: equal figures in tables, JSON and HTML; a self-contained page; plots to scale."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from legato.bench.jsonl import to_json, write_lines
from legato.bench.records import ALL_STAGES, RequestRecord
from legato.bench.rendering import (
    Axis,
    Line,
    ReportTable,
    cumulative_distribution,
    html_page,
    line_plot,
    linear_axis,
    log_axis,
    stacked_bars,
    to_html,
    to_rich,
)
from legato.bench.report import metadata_of, tables
from legato.bench.report import to_html as report_html
from legato.bench.report import to_json as report_json
from legato.bench.request_report import PUBLISHED, table2
from legato.bench.summary import summaries
from legato.cli.main import EXIT_OK, EXIT_USAGE, main
from tests.bench.sample_records import MODEL, STAGES_MS, make_audio, make_batch, make_record, make_request

BATCH = make_batch()


def latency_and_load() -> list[RequestRecord]:
    """Records of a cold request and of three load levels, one of them refused."""
    load = [make_record(make_request(number, concurrency=level)) for level in (1, 3, 6) for number in range(3)]
    return [make_record(make_request(0, cold=True)), *load, make_record(make_request(3, concurrency=6), audio=None)]


# --- tables -----------------------------------------------------------------------------------------------------------


def test_stage_table_has_every_stage_the_unaccounted_time_and_the_sum() -> None:
    cold, warm = make_record(make_request(0, cold=True)), make_record(make_request(0))
    stages = tables([cold, warm])[0]
    assert [row[0] for row in stages.rows[: len(ALL_STAGES) + 1]] == [*ALL_STAGES, "unaccounted"]
    means = [float(row[1]) for row in stages.rows]
    assert means[: len(ALL_STAGES)] == list(STAGES_MS)
    assert sum(means[: len(ALL_STAGES) + 1]) == means[len(ALL_STAGES) + 1] == sum(STAGES_MS)
    assert stages.highlighted == (len(ALL_STAGES) + 1,)


def test_load_table_counts_refused_requests_and_streams_without_underrun() -> None:
    load = next(table for table in tables(latency_and_load()) if table.title == "Load")
    index = {heading: number for number, heading in enumerate(load.headings)}
    (six,) = (row for row in load.rows if "6 concurrent" in row[0])
    assert (six[index["requests"]], six[index["refused"]], six[index["no underrun"]]) == ("4", "1", "3 of 3")


def test_table2_highlights_published_rows() -> None:
    table = table2(summaries(latency_and_load()))
    assert [row[1] for row in table.rows[:3]] == ["1", "3", "6"]
    lm, codec, first = (float(cell) for cell in table.rows[0][3:6])
    assert lm + codec == first == sum(STAGES_MS[1:-2])
    published = [row for row in table.rows if "published elsewhere, not measured" in row[0]]
    assert len(published) == len(PUBLISHED)
    assert table.highlighted == tuple(range(3, 3 + len(PUBLISHED)))
    assert "not measured" in table.note


def test_published_rows_are_consistent() -> None:
    for row in PUBLISHED:
        assert row.lm_ms + row.codec_ms == row.first_packet_ms
        assert row.frame_ms / 80 == pytest.approx(row.real_time_factor, abs=0.004)


def test_table_shows_the_same_cells_in_terminal_and_html() -> None:
    table = ReportTable(
        "A <title>", ("what", "ms"), (("a & b", "1.0"), ("sum", "2.0")), note="<read>", highlighted=(1,)
    )
    page = to_html(table)
    assert "A &lt;title&gt;" in page
    assert "&lt;read&gt;" in page
    assert '<tr class="marked"><td>sum</td><td class="number">2.0</td></tr>' in page
    shown = [[str(cell) for cell in column.cells] for column in to_rich(table).columns]
    assert shown == [["a & b", "sum"], ["1.0", "2.0"]]
    with pytest.raises(ValueError, match="1 cells under 2"):
        ReportTable("a", ("b", "c"), (("d",),))


# --- JSON and metadata -----------------------------------------------------------------------------------------------


def test_json_has_every_case_and_the_facts() -> None:
    got = json.loads(report_json([*latency_and_load(), BATCH]))
    assert [case["case"]["request"]["concurrency"] for case in got["cases"]] == [1, 1, 3, 6]
    assert got["cases"][1]["stages_ms"]["codec"]["p50"] == STAGES_MS[ALL_STAGES.index("codec")]
    assert got["batches"][0]["total_frames_per_s"] == 20.0
    metadata = got["metadata"]
    assert (metadata["talker dtype"], metadata["quantization"], metadata["threads"]) == ("float32", "none", "1")
    assert (metadata["included in the times"], metadata["packet frames"]) == ("text front end", "[4]")
    assert metadata["not included"] == "reference encoding, device copies"
    assert metadata["seconds of audio"] == "0.64"


def test_differing_facts_are_all_listed() -> None:
    other = replace(make_record(), model=replace(MODEL, talker_dtype="bfloat16"), synchronized=False)
    metadata = dict(metadata_of([make_record(), other]))
    assert metadata["talker dtype"] == "float32; bfloat16"
    assert metadata["stage ends"] == "device synchronized; host clock"


def test_backends_are_listed_if_recorded() -> None:
    compiled = replace(make_record(), model=replace(MODEL, backend="layers compiled for this CPU"))
    assert "backend" not in dict(metadata_of([make_record()]))
    assert dict(metadata_of([make_record(), compiled]))["backend"] == "layers compiled for this CPU"


# --- page and plots ---------------------------------------------------------------------------------------------------


def svgs(page: str) -> list[ElementTree.Element]:
    return [ElementTree.fromstring(each) for each in re.findall(r"<svg.*?</svg>", page, flags=re.DOTALL)]


def test_page_has_its_plots_and_is_self_contained() -> None:
    page = report_html([*latency_and_load(), BATCH], "a <b> page")
    headings = re.findall(r"<h2>(.*?)</h2>", page)
    for wanted in (
        "Time until playback starts, by stage",
        "TTFA against concurrency",
        "Throughput against concurrency",
        "Inter-chunk gaps",
        "Throughput against batch size",
    ):
        assert wanted in headings
    assert len(svgs(page)) == 5
    assert "a &lt;b&gt; page" in page
    assert "prefers-color-scheme: dark" in page
    assert not re.search(r"<script|<link|<img|@import|url\(|https?://", page)


def widths(svg: str) -> list[float]:
    """Widths of the parts of the bars, top to bottom, left to right, without the squares of the legend."""
    rects = [each for each in ElementTree.fromstring(svg).iter("rect") if each.get("height") == "18"]
    return [float(rect.get("width", "0")) for rect in rects]


@given(st.lists(st.lists(st.floats(0.5, 100.0), min_size=3, max_size=3), min_size=1, max_size=4))
def test_bar_parts_are_to_scale(bars: list[list[float]]) -> None:
    parts = [(f"part {index}", [bar[index] for bar in bars]) for index in range(3)]
    got = widths(stacked_bars([str(index) for index in range(len(bars))], parts, title="t", unit="ms"))
    flat = [value for bar in bars for value in bar]
    assert len(got) == len(flat)
    scale = sum(got) / sum(flat)
    assert got == pytest.approx([scale * value for value in flat], abs=0.3)


@given(st.lists(st.tuples(st.floats(1.0, 64.0), st.floats(0.1, 5000.0)), min_size=1, max_size=9))
def test_line_points_are_to_scale(points: list[tuple[float, float]]) -> None:
    x, y = linear_axis("x", [px for px, _ in points]), linear_axis("y", [py for _, py in points])
    dots = list(ElementTree.fromstring(line_plot([Line("a", tuple(points), 0)], x, y)).iter("circle"))
    for dot, (px, py) in zip(dots, points, strict=True):
        assert float(dot.get("cx", "0")) == pytest.approx(64 + 792 * px / x.maximum, abs=0.1)
        assert float(dot.get("cy", "0")) == pytest.approx(272 - 260 * py / y.maximum, abs=0.1)


@given(st.floats(1e-3, 1e6), st.floats(1.001, 1e4), st.booleans())
def test_ticks_are_ordered_and_within_the_axis(minimum: float, factor: float, log: bool) -> None:
    axis = Axis("a", minimum if log else 0.0, minimum * factor, log=log)
    ticks = axis.ticks()
    assert ticks == sorted(ticks)
    assert all(-1e-6 <= axis.fraction(tick) <= 1 + 1e-6 for tick in ticks)
    assert log or 3 <= len(ticks) <= 9
    assert (axis.fraction(axis.minimum), axis.fraction(axis.maximum)) == pytest.approx((0.0, 1.0))


@given(st.lists(st.floats(0.1, 1e5), min_size=1, max_size=30))
def test_cumulative_distribution_rises_from_0_to_1(values: Sequence[float]) -> None:
    points = cumulative_distribution(values)
    assert (points[0][1], points[-1]) == (0.0, (max(values), 1.0))
    assert [fraction for _, fraction in points] == sorted(fraction for _, fraction in points)
    for value in values:
        at_most = max(fraction for index, fraction in points if index <= value)
        assert at_most == pytest.approx(sum(each <= value for each in values) / len(values))
    assert log_axis("a", values).fraction(max(values)) <= 1


def test_names_are_escaped() -> None:
    assert "<b>" not in stacked_bars(["<b>"], [("<b>", [1.0])], title="<b>", unit="<b>")
    assert "<b>" not in line_plot([Line("<b>", ((1.0, 1.0),), 0)], linear_axis("<b>", [1.0]), linear_axis("<b>", [1.0]))
    assert "<b>" not in html_page("<b>", [("<b>", "<b>")], [])


# --- the command ------------------------------------------------------------------------------------------------------


def test_report_command_combines_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, two, page = tmp_path / "one.jsonl", tmp_path / "two.jsonl", tmp_path / "page.html"
    write_lines(one, (to_json("request", each) for each in latency_and_load()))
    write_lines(two, [to_json("batch", BATCH)])
    assert main(["bench", "report", str(one), str(two), "--html", str(page)]) == EXIT_OK
    output = capsys.readouterr().out
    assert "Load" in output
    assert "Throughput against batch size" in output
    assert page.read_text().count("<svg") == 5


def test_file_without_records_is_rejected(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "one.jsonl"
    file.write_text('{"schema": "something"}\n')
    assert main(["bench", "report", str(file)]) == EXIT_USAGE
    assert "one.jsonl:1 is not a legato-bench-3 record" in capsys.readouterr().err


def test_missing_output_folder_is_rejected_before_measuring(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "latency", "--html", "/nowhere/page.html"]) == EXIT_USAGE
    assert "folder '/nowhere' does not exist" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["latency", "load"])
def test_text_rate_over_http_is_rejected(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", command, "--text-rate", "50", "--transport", "http"]) == EXIT_USAGE
    assert "HTTP sends the whole text" in capsys.readouterr().err


def test_single_piece_has_no_later_frame_time() -> None:
    assert make_audio(gaps_ms=()).frame_ms is None
