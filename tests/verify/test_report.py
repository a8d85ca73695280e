"""Tables, JSON and the page say all that was found, and nothing about time."""

from __future__ import annotations

import io
import json
import re
from html import unescape
from typing import cast

import pytest
import torch
from rich.console import Console

from legato.engine.notes import computed_by
from legato.errors import InputError
from legato.verify.compare import Comparison, FirstDifference, failure
from legato.verify.lines import CheckLine, Kind, Verdict, Where
from legato.verify.page import to_html
from legato.verify.report import SCHEMA, fold, legend, tables, to_json
from legato.verify.run import GROUPS, Progress, Report, run_group, verify_model
from legato.verify.subject import FULL, Subject
from legato.verify.tolerance import SAME_BITS, Tolerance
from tests.verify.toy import DEPTH, toy_model, toy_subject

WHERE = Where("cpu", "float32", 3, "a path")
HOW_FAR = Tolerance(2e-5, "sums are taken in another order")
PARTED = FirstDifference("samples", (("row", 0), ("frame", 2), ("sample", 4001)), 0.25, 0.5, beyond=True)


def line(
    claim: str, error: float, kind: Kind = Kind.CLAIM, *, setting: str = "windows of 4", group: str = "codec decoder"
) -> CheckLine:
    first = (PARTED,) if error > 2e-5 else ()
    return CheckLine(group, claim, setting, WHERE, Comparison(error, error, 10, first), HOW_FAR, kind, "a note")


LINES = (
    line("windows = whole", 1e-6, setting="windows of 1"),
    line("windows = whole", 2e-6),
    line("windows = whole", 0.25, setting="random windows"),
    line("history <dropped>", 0.5, Kind.CONTROL),
    line("nothing broken", 1e-7, Kind.CONTROL),
    line("codes agree", 1.0, Kind.MEASURED, group="rows"),
    line("snapshot", 0.0, Kind.NOT_APPLICABLE, group="voices"),
    CheckLine("rows", "it broke", "", WHERE, failure("StateError: no slot"), SAME_BITS),
)
REPORT = Report((("model", "a <model> & more"), ("seed", "0")), LINES)


def shown(report: Report, *, every_line: bool = False) -> str:
    console = Console(file=io.StringIO(), width=400)
    for table in tables(report, every_line=every_line):
        console.print(table)
    return cast(io.StringIO, console.file).getvalue()


def test_the_terminal_folds_what_is_alike_and_never_what_is_wrong() -> None:
    folded = fold(LINES, every_line=False)
    assert [len(alike) for alike in folded] == [2, 1, 1, 1, 1, 1, 1]
    text = shown(REPORT)
    assert "2 settings; here windows of 4" in text
    assert "DIFFERENT: samples: row 0, frame 2, sample 4001: 0.25, not 0.5" in text
    assert "control: nothing broken" in text
    assert "NOT CAUGHT" in text
    assert "measured: a note" in text
    assert "not applicable" in text
    assert "DIFFERENT: StateError: no slot" in text
    assert "windows of 1" not in text
    assert "windows of 1" in shown(REPORT, every_line=True)


def test_the_json_has_every_field_of_every_line_and_only_numbers_that_json_has() -> None:
    found = json.loads(to_json(REPORT))
    assert found["schema"] == SCHEMA
    assert found["passed"] is False
    assert found["facts"] == {"model": "a <model> & more", "seed": "0"}
    assert found["counts"]["DIFFERENT"] == 2
    assert found["counts"]["NOT CAUGHT"] == 1
    assert found["groups_without_control"] == ["rows"]
    assert len(found["lines"]) == len(LINES)
    keys = "group kind claim setting device dtype batch path max_abs max_rel values limit limit_from verdict note"
    assert all(set(each) == {*keys.split(), "first_difference"} for each in found["lines"])
    third = found["lines"][2]
    assert third["first_difference"] == [
        {
            "stage": "samples",
            "row": 0,
            "frame": 2,
            "sample": 4001,
            "got": 0.25,
            "expected": 0.5,
            "beyond_limit": True,
        }
    ]
    assert found["lines"][0]["first_difference"] == []
    assert found["lines"][-1]["max_abs"] == "inf"


def test_the_page_has_every_line_and_needs_nothing_beside_it() -> None:
    page = to_html(REPORT)
    assert page.count("<tr class=") == len(LINES)
    text = unescape(re.sub(r"<[^>]*>", " ", page))
    for each in LINES:
        assert each.claim in text
        assert each.setting in text
        assert each.verdict.value in text
    assert "sample 4001: 0.25, not 0.5" in text
    assert "a <model> & more" in text
    assert all(reason in text for reason in legend(REPORT))
    assert "<dropped>" not in page
    assert not re.search(r"<script|<link|<img|src=|href=|url\(|@import|https?:", page)
    assert "prefers-color-scheme: dark" in page


def test_nothing_speaks_of_time() -> None:
    words = r"\b(seconds?|elapsed|duration|took|faster|ms|speed-?up)\b|\d ?m?s\b"
    for text in (shown(REPORT, every_line=True), to_json(REPORT), re.sub(r"<style>.*?</style>", "", to_html(REPORT))):
        assert not re.search(words, text.replace("how fast anything is", ""))


# --- the run ---------------------------------------------------------------------------------------------------------


def test_a_whole_run_tells_its_progress_and_has_every_group() -> None:
    told: list[Progress] = []
    report = verify_model(toy_model(), name="toy", depth=DEPTH, progress=told.append, groups=QUICK_GROUPS)
    assert list(dict.fromkeys(each.group for each in report.lines)) == list(QUICK_GROUPS)
    assert told[-1] == Progress(QUICK_GROUPS[-1], 1, 2, len(report.lines))
    assert dict(report.facts)["depth"] == "test"
    assert dict(report.facts)["computed by"] == computed_by(toy_model())
    assert report.passed


QUICK_GROUPS = ("worked convolution example", "cloned voice")


@pytest.fixture(autouse=True)
def toy_front_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """The toy has no tokenizer's files."""
    monkeypatch.setattr(
        Subject, "of", staticmethod(lambda model, depth, _seed, **_how: toy_subject(model, depth=depth)), raising=True
    )


def test_a_checkpoint_that_clones_no_voice_says_why_and_is_counted_apart() -> None:
    report = verify_model(toy_model(), name="toy", depth=DEPTH, groups=QUICK_GROUPS)
    (line,) = [each for each in report.lines if each.group == "cloned voice"]
    assert line.verdict is Verdict.NOT_APPLICABLE
    assert "only Base checkpoints" in line.note
    assert report.tally.verdicts[Verdict.NOT_APPLICABLE] == 1
    assert "1 not applicable" in str(report.tally)


def test_a_group_that_breaks_is_a_failed_line_and_the_others_still_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks(_device: torch.device) -> None:
        raise RuntimeError("out of something")

    monkeypatch.setattr("legato.verify.convolution.check_convolution", breaks)
    report = verify_model(toy_model(), name="toy", depth=DEPTH, groups=QUICK_GROUPS)
    assert [each.group for each in report.lines] == list(QUICK_GROUPS)
    assert report.lines[0].verdict is Verdict.DIFFERENT
    assert "RuntimeError: out of something" in shown(report)
    assert not report.passed


def test_what_a_group_found_before_it_broke_is_kept() -> None:
    def half(_subject: Subject):  # type: ignore[no-untyped-def]
        yield LINES[0]
        raise RuntimeError("later")

    found = list(run_group("codec decoder", half, toy_subject()))
    assert [each.bad for each in found] == [False, True]


def test_every_group_of_the_issue_is_there() -> None:
    assert list(GROUPS) == [
        "worked convolution example",
        "codec layers",
        "codec decoder",
        "talker with cache",
        "code predictor",
        "recorded work",
        "rows of a batch",
        "cancel",
        "slot reuse after cancel",
        "text in pieces",
        "cloned voice",
    ]
    assert FULL.decode_frames > 300


def test_a_group_can_be_checked_alone_and_the_report_says_so() -> None:
    report = verify_model(toy_model(), name="toy", depth=DEPTH, groups=("worked convolution example",))
    assert {line.group for line in report.lines} == {"worked convolution example"}
    assert dict(report.facts)["groups"] == "worked convolution example"


def test_a_group_that_does_not_exist_is_refused_with_those_that_do() -> None:
    with pytest.raises(InputError, match="codec decoder"):
        verify_model(toy_model(), name="toy", depth=DEPTH, groups=("codec",))
