"""Tables, JSON and HTML contain all results and no run times."""

from __future__ import annotations

import io
import json
import re
from html import unescape
from typing import cast

import pytest
import torch
from rich.console import Console

from legato.backends.base import description_of
from legato.errors import InputError
from legato.verify.compare import SAME_BITS, Comparison, FirstDifference, Tolerance, failure
from legato.verify.report import SCHEMA, fold, legend, tables, to_html, to_json
from legato.verify.results import CheckLine, ExecutionInfo, Kind, Report, Verdict
from legato.verify.run import GROUPS, Progress, run_group, verify_model
from legato.verify.target import FULL, Target
from tests.verify.toy import DEPTH, toy_backend, toy_target

EXECUTION = ExecutionInfo("cpu", "float32", 3, "a path")
LIMIT = Tolerance(2e-5, "the order of summation differs")
DIFFERENCE = FirstDifference(
    stage="samples", place=(("row", 0), ("frame", 2), ("sample", 4001)), got=0.25, expected=0.5, beyond=True
)


def line(
    claim: str, error: float, kind: Kind = Kind.CLAIM, *, setting: str = "windows of 4", group: str = "codec decoder"
) -> CheckLine:
    return CheckLine(
        group=group,
        claim=claim,
        setting=setting,
        execution=EXECUTION,
        comparison=Comparison(error, error, 10, DIFFERENCE if error > 2e-5 else None),
        tolerance=LIMIT,
        kind=kind,
        note="a note",
    )


LINES = (
    line("windows = whole", 1e-6, setting="windows of 1"),
    line("windows = whole", 2e-6),
    line("windows = whole", 0.25, setting="random windows"),
    line("history <dropped>", 0.5, Kind.CONTROL),
    line("nothing broken", 1e-7, Kind.CONTROL),
    line("codes agree", 1.0, Kind.MEASURED, group="rows"),
    line("snapshot", 0.0, Kind.NOT_APPLICABLE, group="voices"),
    CheckLine(
        group="rows",
        claim="it broke",
        setting="",
        execution=EXECUTION,
        comparison=failure("StateError: no slot"),
        tolerance=SAME_BITS,
    ),
)
REPORT = Report((("model", "a <model> & more"), ("seed", "0")), LINES)


def shown(report: Report, *, every_line: bool = False) -> str:
    console = Console(file=io.StringIO(), width=400)
    for table in tables(report, every_line=every_line):
        console.print(table)
    return cast(io.StringIO, console.file).getvalue()


def test_terminal_folds_similar_lines_but_never_failed_ones() -> None:
    folded = fold(LINES, every_line=False)
    assert [len(similar) for similar in folded] == [2, 1, 1, 1, 1, 1, 1]
    text = shown(REPORT)
    assert "worst of 2 settings: windows of 4" in text
    assert "DIFFERENT: samples: row 0, frame 2, sample 4001: 0.25, not 0.5" in text
    assert "control: nothing broken" in text
    assert "NOT DETECTED" in text
    assert "measured: a note" in text
    assert "not applicable" in text
    assert "DIFFERENT: StateError: no slot" in text
    assert "windows of 1" not in text
    assert "windows of 1" in shown(REPORT, every_line=True)


def test_json_has_every_field_of_every_line_and_valid_numbers() -> None:
    found = json.loads(to_json(REPORT))
    assert found["schema"] == SCHEMA
    assert found["passed"] is False
    assert found["metadata"] == {"model": "a <model> & more", "seed": "0"}
    assert found["counts"]["DIFFERENT"] == 2
    assert found["counts"]["NOT DETECTED"] == 1
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


def test_page_is_self_contained_and_has_every_line() -> None:
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


def test_reports_contain_no_run_times() -> None:
    words = r"\b(seconds?|elapsed|duration|took|faster|ms|speed-?up)\b|\d ?m?s\b"
    for text in (shown(REPORT, every_line=True), to_json(REPORT), re.sub(r"<style>.*?</style>", "", to_html(REPORT))):
        assert not re.search(words, text.replace("how fast anything is", ""))


# --- the run ---------------------------------------------------------------------------------------------------------


def test_run_reports_progress_and_every_group() -> None:
    updates: list[Progress] = []
    report = verify_model(toy_backend(), name="toy", depth=DEPTH, progress=updates.append, groups=QUICK_GROUPS)
    assert list(dict.fromkeys(each.group for each in report.lines)) == list(QUICK_GROUPS)
    assert updates[-1] == Progress(QUICK_GROUPS[-1], 1, 2, len(report.lines))
    assert dict(report.metadata)["depth"] == "test"
    assert dict(report.metadata)["backend"] == description_of(toy_backend())
    assert report.passed


QUICK_GROUPS = ("worked convolution example", "cloned voice")


@pytest.fixture(autouse=True)
def toy_front_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """The toy model has no tokenizer files."""
    monkeypatch.setattr(
        Target, "of", staticmethod(lambda model, depth, _seed, **_options: toy_target(model, depth=depth)), raising=True
    )


def test_checkpoint_without_cloning_is_not_applicable_with_a_reason() -> None:
    report = verify_model(toy_backend(), name="toy", depth=DEPTH, groups=QUICK_GROUPS)
    (line,) = [each for each in report.lines if each.group == "cloned voice"]
    assert line.verdict is Verdict.NOT_APPLICABLE
    assert "only Base checkpoints" in line.note
    assert report.tally.verdicts[Verdict.NOT_APPLICABLE] == 1
    assert "1 not applicable" in str(report.tally)


def test_exception_in_a_group_is_a_failed_line_and_other_groups_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_device: torch.device) -> None:
        raise RuntimeError("out of something")

    monkeypatch.setattr("legato.verify.codec_layers.check_convolution", fails)
    report = verify_model(toy_backend(), name="toy", depth=DEPTH, groups=QUICK_GROUPS)
    assert [each.group for each in report.lines] == list(QUICK_GROUPS)
    assert report.lines[0].verdict is Verdict.DIFFERENT
    assert "RuntimeError: out of something" in shown(report)
    assert not report.passed


def test_lines_before_an_exception_are_kept() -> None:
    def half(_subject: Target):  # type: ignore[no-untyped-def]
        yield LINES[0]
        raise RuntimeError("later")

    found = list(run_group("codec decoder", half, toy_target()))
    assert [each.bad for each in found] == [False, True]


def test_all_groups_are_listed() -> None:
    assert list(GROUPS) == [
        "worked convolution example",
        "codec layers",
        "codec decoder",
        "talker with cache",
        "code predictor",
        "CUDA graphs",
        "rows of a batch",
        "cancel",
        "slot reuse after cancel",
        "text in pieces",
        "cloned voice",
    ]
    assert FULL.decode_frames > 300


def test_single_group_is_checked_and_named_in_the_report() -> None:
    report = verify_model(toy_backend(), name="toy", depth=DEPTH, groups=("worked convolution example",))
    assert {line.group for line in report.lines} == {"worked convolution example"}
    assert dict(report.metadata)["groups"] == "worked convolution example"


def test_unknown_group_is_refused_with_the_known_names() -> None:
    with pytest.raises(InputError, match="codec decoder"):
        verify_model(toy_backend(), name="toy", depth=DEPTH, groups=("codec",))
