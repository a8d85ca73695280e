"""Reports of records: the same figures in table, JSON and page; a page that needs nothing; plots that are to scale."""

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

from legato.bench.grid import Grid, to_html, to_rich
from legato.bench.jsonl import to_json, write_lines
from legato.bench.page import to_page
from legato.bench.plot import Axis, Line, linear, lines, logarithmic, shares, stacked_bars
from legato.bench.records import ALL_STAGES, BatchRecord, RequestRecord
from legato.bench.report import facts_of, tables
from legato.bench.report import to_html as report_html
from legato.bench.report import to_json as report_json
from legato.bench.summary import summaries
from legato.bench.table2 import PUBLISHED, table2
from legato.cli.main import EXIT_OK, EXIT_REFUSED, main
from tests.bench.made import MACHINE, MODEL, STAGES_MS, asked, record, sound

BATCH = BatchRecord(MACHINE, MODEL, (4,), 128, "default", 4, 8, 1.0, 1.0, 1.0, 20.0, 1.6, 0.1, 0.1, 1.0, 1, 1)


def some() -> list[RequestRecord]:
    """Latency and load, one of them refused."""
    load = [record(asked(number, concurrency=level)) for level in (1, 3, 6) for number in range(3)]
    return [record(asked(0, cold=True)), *load, record(asked(3, concurrency=6), sounds=())]


# --- tables -----------------------------------------------------------------------------------------------------------


def test_every_stage_stands_in_the_table_with_its_remainder_and_sum() -> None:
    cold, warm = record(asked(0, cold=True)), record(asked(0))
    stages = tables([cold, warm])[0]
    assert [row[0] for row in stages.rows[: len(ALL_STAGES) + 1]] == [*ALL_STAGES, "unaccounted"]
    means = [float(row[1]) for row in stages.rows]
    assert means[: len(ALL_STAGES)] == list(STAGES_MS)
    assert sum(means[: len(ALL_STAGES) + 1]) == means[len(ALL_STAGES) + 1] == sum(STAGES_MS)
    assert stages.marked == (len(ALL_STAGES) + 1,)


def test_refused_requests_are_counted_and_those_who_kept_time() -> None:
    load = next(table for table in tables(some()) if table.title == "Streams side by side")
    at = {heading: number for number, heading in enumerate(load.headings)}
    (six,) = (row for row in load.rows if "6 at once" in row[0])
    assert (six[at["asked"]], six[at["refused"]], six[at["kept in real time"]]) == ("4", "1", "3 of 3")


def test_the_reports_layout_marks_what_was_published_and_not_measured() -> None:
    table = table2(summaries(some()))
    assert [row[1] for row in table.rows[:3]] == ["1", "3", "6"]
    lm, codec, first = (float(cell) for cell in table.rows[0][3:6])
    assert lm + codec == first == sum(STAGES_MS[1:-2])
    published = [row for row in table.rows if "published elsewhere, not measured" in row[0]]
    assert len(published) == len(PUBLISHED)
    assert table.marked == tuple(range(3, 3 + len(PUBLISHED)))
    assert "not measured" in table.note


def test_published_rows_add_up_as_the_report_says() -> None:
    for row in PUBLISHED:
        assert row.lm_ms + row.codec_ms == row.first_packet_ms
        assert row.frame_ms / 80 == pytest.approx(row.real_time_factor, abs=0.004)


def test_a_grid_shows_the_same_cells_in_the_terminal_and_on_the_page() -> None:
    grid = Grid("A <title>", ("what", "ms"), (("a & b", "1.0"), ("sum", "2.0")), note="<read>", marked=(1,))
    page = to_html(grid)
    assert "A &lt;title&gt;" in page
    assert "&lt;read&gt;" in page
    assert '<tr class="marked"><td>sum</td><td class="number">2.0</td></tr>' in page
    shown = [[str(cell) for cell in column.cells] for column in to_rich(grid).columns]
    assert shown == [["a & b", "sum"], ["1.0", "2.0"]]
    with pytest.raises(ValueError, match="1 cells under 2"):
        Grid("a", ("b", "c"), (("d",),))


# --- JSON and facts ---------------------------------------------------------------------------------------------------


def test_the_json_holds_every_case_with_what_its_figures_depend_on() -> None:
    got = json.loads(report_json([*some(), BATCH]))
    assert [case["case"]["asked"]["concurrency"] for case in got["cases"]] == [1, 1, 3, 6]
    assert got["cases"][1]["stages_ms"]["codec"]["p50"] == STAGES_MS[ALL_STAGES.index("codec")]
    assert got["batches"][0]["total_frames_s"] == 20.0
    facts = got["facts"]
    assert (facts["talker dtype"], facts["quantisation"], facts["threads"]) == ("float32", "none", "1")
    assert (facts["inside the times"], facts["packet frames"]) == ("text front end", "[4]")
    assert facts["not inside"] == "reference encoding, copies from the device"
    assert facts["seconds of sound"] == "0.64"


def test_facts_that_differ_are_all_told() -> None:
    other = replace(record(), model=replace(MODEL, talker_dtype="bfloat16"), settled=False)
    facts = dict(facts_of([record(), other]))
    assert facts["talker dtype"] == "float32; bfloat16"
    assert facts["stage ends"] == "the device was waited for; host clock"


def test_by_what_a_model_computed_is_told_where_it_was_recorded() -> None:
    compiled = replace(record(), model=replace(MODEL, computed_by="layers compiled for this CPU"))
    assert "computed by" not in dict(facts_of([record()]))
    assert dict(facts_of([record(), compiled]))["computed by"] == "layers compiled for this CPU"


# --- page and plots ---------------------------------------------------------------------------------------------------


def svgs(page: str) -> list[ElementTree.Element]:
    return [ElementTree.fromstring(each) for each in re.findall(r"<svg.*?</svg>", page, flags=re.DOTALL)]


def test_the_page_has_its_plots_and_needs_nothing_beside_it() -> None:
    page = report_html([*some(), BATCH], "a <b> page")
    headings = re.findall(r"<h2>(.*?)</h2>", page)
    for wanted in (
        "Where the time until the first sound goes",
        "First packet against concurrency",
        "Throughput against concurrency",
        "Gaps between packets",
        "Throughput against batch size",
    ):
        assert wanted in headings
    assert len(svgs(page)) == 5
    assert "a &lt;b&gt; page" in page
    assert "prefers-color-scheme: dark" in page
    assert not re.search(r"<script|<link|<img|@import|url\(|https?://", page)


def widths(svg: str) -> list[float]:
    """Of the bars' parts, top to bottom, left to right; the legend's squares are no parts."""
    rects = [each for each in ElementTree.fromstring(svg).iter("rect") if each.get("height") == "18"]
    return [float(rect.get("width", "0")) for rect in rects]


@given(st.lists(st.lists(st.floats(0.5, 100.0), min_size=3, max_size=3), min_size=1, max_size=4))
def test_parts_of_bars_are_to_scale(bars: list[list[float]]) -> None:
    parts = [(f"part {at}", [bar[at] for bar in bars]) for at in range(3)]
    got = widths(stacked_bars([str(at) for at in range(len(bars))], parts, title="t", unit="ms"))
    flat = [value for bar in bars for value in bar]
    assert len(got) == len(flat)
    scale = sum(got) / sum(flat)
    assert got == pytest.approx([scale * value for value in flat], abs=0.3)


@given(st.lists(st.tuples(st.floats(1.0, 64.0), st.floats(0.1, 5000.0)), min_size=1, max_size=9))
def test_points_of_lines_are_to_scale(points: list[tuple[float, float]]) -> None:
    x, y = linear("x", [px for px, _ in points]), linear("y", [py for _, py in points])
    dots = list(ElementTree.fromstring(lines([Line("a", tuple(points), 0)], x, y)).iter("circle"))
    for dot, (px, py) in zip(dots, points, strict=True):
        assert float(dot.get("cx", "0")) == pytest.approx(64 + 792 * px / x.most, abs=0.1)
        assert float(dot.get("cy", "0")) == pytest.approx(272 - 260 * py / y.most, abs=0.1)


@given(st.floats(1e-3, 1e6), st.floats(1.001, 1e4), st.booleans())
def test_ticks_are_round_and_between_the_ends(least: float, factor: float, log: bool) -> None:
    axis = Axis("a", least if log else 0.0, least * factor, log=log)
    ticks = axis.ticks()
    assert ticks == sorted(ticks)
    assert all(-1e-6 <= axis.share(tick) <= 1 + 1e-6 for tick in ticks)
    assert log or 3 <= len(ticks) <= 9
    assert (axis.share(axis.least), axis.share(axis.most)) == pytest.approx((0.0, 1.0))


@given(st.lists(st.floats(0.1, 1e5), min_size=1, max_size=30))
def test_a_distribution_rises_from_nothing_to_all(values: Sequence[float]) -> None:
    points = shares(values)
    assert (points[0][1], points[-1]) == (0.0, (max(values), 1.0))
    assert [share for _, share in points] == sorted(share for _, share in points)
    for value in values:
        at_most = max(share for at, share in points if at <= value)
        assert at_most == pytest.approx(sum(each <= value for each in values) / len(values))
    assert logarithmic("a", values).share(max(values)) <= 1


def test_names_are_escaped_in_plots() -> None:
    assert "<b>" not in stacked_bars(["<b>"], [("<b>", [1.0])], title="<b>", unit="<b>")
    assert "<b>" not in lines([Line("<b>", ((1.0, 1.0),), 0)], linear("<b>", [1.0]), linear("<b>", [1.0]))
    assert "<b>" not in to_page("<b>", [("<b>", "<b>")], [])


# --- the command ------------------------------------------------------------------------------------------------------


def test_the_command_reports_several_files_as_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, two, page = tmp_path / "one.jsonl", tmp_path / "two.jsonl", tmp_path / "page.html"
    write_lines(one, (to_json("request", each) for each in some()))
    write_lines(two, [to_json("batch", BATCH)])
    assert main(["bench", "report", str(one), str(two), "--html", str(page)]) == EXIT_OK
    told = capsys.readouterr().out
    assert "Streams side by side" in told
    assert "Throughput against batch size" in told
    assert page.read_text().count("<svg") == 5


def test_a_file_that_is_no_record_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "one.jsonl"
    file.write_text('{"schema": "something"}\n')
    assert main(["bench", "report", str(file)]) == EXIT_REFUSED
    assert "one.jsonl:1 is no record" in capsys.readouterr().err


def test_a_folder_that_is_not_there_is_refused_before_anything_is_measured(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "latency", "--html", "/nowhere/page.html"]) == EXIT_REFUSED
    assert "there is no folder '/nowhere'" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["latency", "load"])
def test_text_in_pieces_over_http_is_refused(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", command, "--text-rate", "50", "--transport", "http"]) == EXIT_REFUSED
    assert "HTTP takes the whole text" in capsys.readouterr().err


def test_sounds_without_later_pieces_have_no_time_of_a_later_frame() -> None:
    assert sound(gaps_ms=()).frame_ms == ()
