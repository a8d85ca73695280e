"""Formats a report as terminal tables, JSON and an HTML page. Reports errors and limits, never run times.

The terminal folds lines that differ only in setting or path into one, unless a line fails. JSON and HTML contain every
line. This module defines the JSON schema.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from itertools import groupby

from rich.table import Table
from rich.text import Text

from legato.html_report import cell, html_document, metadata_list, section, table
from legato.verify.compare import FirstDifference
from legato.verify.results import BAD, CheckLine, ExecutionInfo, Kind, Report, Verdict

SCHEMA = "legato-verify-2"
COLUMNS = ("check", "setting", "device", "dtype", "batch", "max abs", "max rel", "limit", "result")
_RIGHT_ALIGNED = frozenset({"batch", "max abs", "max rel", "limit"})
_TERMINAL_STYLE = {
    Verdict.EQUAL: "green",
    Verdict.DETECTED: "green",
    Verdict.DIFFERENT: "bold red",
    Verdict.NOT_DETECTED: "bold red",
    Verdict.MEASURED: "yellow",
    Verdict.NOT_APPLICABLE: "dim",
}

JsonValue = str | int | float | bool | Sequence["JsonValue"] | Mapping[str, "JsonValue"]


def claim_text(line: CheckLine) -> str:
    """The claim, marked if it is a control."""
    return f"control: {line.claim}" if line.kind is Kind.CONTROL else line.claim


def figures(line: CheckLine) -> list[str]:
    """Largest absolute and relative error and the limit, as text."""
    if line.kind is Kind.NOT_APPLICABLE:
        return ["", "", ""]
    comparison = line.comparison
    return [f"{comparison.max_abs:.1e}", f"{comparison.max_rel:.1e}", f"{line.tolerance.limit:.1e}"]


def legend(report: Report) -> list[str]:
    """The reasons for the limits, each once."""
    return list(dict.fromkeys(line.tolerance.reason for line in report.lines if line.kind is not Kind.NOT_APPLICABLE))


# --- terminal --------------------------------------------------------------------------------------------------------


def tables(report: Report, *, every_line: bool = False) -> Iterator[Table]:
    """One table per group. With `every_line`, nothing is folded."""
    for group, lines in groupby(report.lines, key=lambda line: line.group):
        rows = Table(title=group, title_justify="left", title_style="bold", box=None, pad_edge=False)
        for heading in COLUMNS:
            rows.add_column(heading, justify="right" if heading in _RIGHT_ALIGNED else "left", overflow="fold")
        for similar in fold(list(lines), every_line=every_line):
            rows.add_row(*terminal_row(similar))
        yield rows


def fold(lines: Sequence[CheckLine], *, every_line: bool) -> list[list[CheckLine]]:
    """Group lines that differ only in setting and path. A failed line stays separate."""
    folded: dict[tuple[object, ...], list[CheckLine]] = {}
    for index, line in enumerate(lines):
        separate = every_line or line.bad
        execution = (line.execution.device, line.execution.dtype, line.execution.batch)
        folded.setdefault((line.claim, line.kind, execution, index if separate else -1), []).append(line)
    return list(folded.values())


def terminal_row(similar: Sequence[CheckLine]) -> list[Text]:
    """Table row of similar lines. It shows the line that is closest to its limit or exceeds it most."""
    worst = max(similar, key=closeness)
    setting = worst.setting or worst.note
    if len(similar) > 1:
        setting = f"worst of {len(similar)} settings: {setting}"
    execution = worst.execution
    cells = [claim_text(worst), setting, execution.device, execution.dtype, str(execution.batch), *figures(worst)]
    return [*map(Text, cells), Text(result_of(worst), style=_TERMINAL_STYLE[worst.verdict])]


def closeness(line: CheckLine) -> float:
    """How close a claim was to failing, or a fault to not being detected."""
    ratio = line.comparison.max_abs / line.tolerance.limit if line.tolerance.limit else line.comparison.max_abs
    return -ratio if line.kind is Kind.CONTROL else ratio


def result_of(line: CheckLine) -> str:
    """The verdict, with the first difference or the note if it is bad or measured."""
    verdict = line.verdict.value
    if line.verdict in BAD and line.kind is Kind.CLAIM and line.comparison.first is not None:
        return f"{verdict}: {line.comparison.first}"
    if line.verdict in (Verdict.MEASURED, Verdict.DIFFERENT) and line.note:
        return f"{verdict}: {line.note}"
    return verdict


# --- JSON ------------------------------------------------------------------------------------------------------------


def to_json(report: Report) -> str:
    """The whole report. Infinite and undefined numbers are the strings "inf" and "nan"."""
    tally = report.tally
    value: JsonValue = {
        "schema": SCHEMA,
        "passed": report.passed,
        "metadata": dict(report.metadata),
        "counts": {verdict.value: count for verdict, count in tally.verdicts.items()},
        "groups_without_control": list(tally.without_control),
        "lines": [line_value(line) for line in report.lines],
    }
    return json.dumps(value, ensure_ascii=False, indent=2, allow_nan=False) + "\n"


def line_value(line: CheckLine) -> JsonValue:
    """One line. `first_difference` is a list of one item, or empty if all values are bit-identical."""
    comparison = line.comparison
    return {
        "group": line.group,
        "kind": line.kind.value,
        "claim": line.claim,
        "setting": line.setting,
        **execution_value(line.execution),
        "max_abs": number(comparison.max_abs),
        "max_rel": number(comparison.max_rel),
        "values": comparison.values,
        "limit": number(line.tolerance.limit),
        "limit_from": line.tolerance.reason,
        "verdict": line.verdict.value,
        "note": line.note,
        "first_difference": [] if comparison.first is None else [difference_value(comparison.first)],
    }


def difference_value(difference: FirstDifference) -> JsonValue:
    """Stage, coordinates by axis, and both values."""
    return {
        "stage": difference.stage,
        **dict(difference.place),
        "got": number(difference.got),
        "expected": number(difference.expected),
        "beyond_limit": difference.beyond,
    }


def execution_value(execution: ExecutionInfo) -> dict[str, JsonValue]:
    """Device, dtype, batch and path."""
    return {
        "device": execution.device,
        "dtype": execution.dtype,
        "batch": execution.batch,
        "path": execution.path,
    }


def number(value: float) -> JsonValue:
    """The number, or its name if JSON cannot represent it."""
    return value if math.isfinite(value) else str(value)


# --- HTML ------------------------------------------------------------------------------------------------------------

HTML_COLUMNS = (*COLUMNS[:5], "path", *COLUMNS[5:], "first difference")
_HTML_CLASS = {
    Verdict.EQUAL: "good",
    Verdict.DETECTED: "good",
    Verdict.DIFFERENT: "bad",
    Verdict.NOT_DETECTED: "bad",
    Verdict.MEASURED: "measured",
    Verdict.NOT_APPLICABLE: "none",
}
STYLE = """
:root { --good: #12703a; --bad: #b3141e; --measured: #8a5a00; }
@media (prefers-color-scheme: dark) { :root { --good: #5fce8b; --bad: #ff7b80; --measured: #e5b454; } }
body { max-width: 100rem; }
.verdict { font-size: 1.1rem; font-weight: 600; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .15rem 1rem; }
dl div { display: contents; }
table { width: 100%; }
th, td { vertical-align: top; padding: .25rem .6rem .25rem 0; }
tr.control td:first-child { padding-left: 1rem; }
tr.bad td { background: var(--band); }
.good { color: var(--good); }
.bad .result, p.bad { color: var(--bad); font-weight: 600; }
.measured { color: var(--measured); }
.none, .small { color: var(--soft); }
"""
INTRODUCTION = (
    "Each claim compares two computations that must agree: one in windows, batched or from saved state, and one in a "
    "single call without other requests. Each control is the same comparison with an injected fault, which must be "
    "detected. Tokens and noise are fixed. Speed is not measured. The relative error is the largest error divided by "
    "the largest reference value."
)


def to_html(report: Report) -> str:
    """A self-contained page with every line. Model names and error messages are escaped."""
    name = dict(report.metadata).get("model", "")
    verdict = "good" if report.passed else "bad"
    reasons = "\n".join(f"<li>{escape(reason)}</li>" for reason in legend(report))
    parts = [
        f'<p class="verdict {verdict}">{escape(str(report.tally))}</p>',
        f"<p>{escape(INTRODUCTION)}</p>",
        metadata_list(report.metadata),
    ]
    for group, lines in groupby(report.lines, key=lambda line: line.group):
        parts.append(section(group, table((cell(each, tag="th") for each in HTML_COLUMNS), map(html_row, lines))))
    parts.append(f"<h2>Reasons for the limits</h2><ul>\n{reasons}\n</ul>")
    return html_document(f"legato verify: {name}", parts, style=STYLE)


def html_row(line: CheckLine) -> str:
    """One table row. The tooltip of the limit is its reason, which is also listed below the tables."""
    style = _HTML_CLASS[line.verdict]
    row_class = f"{style} control" if line.kind is Kind.CONTROL else style
    execution, first = line.execution, line.comparison.first
    max_abs, max_rel, limit = figures(line)
    remarks: list[str] = []
    if first is not None:
        within = not first.beyond and line.kind is not Kind.MEASURED
        remarks.append(f"{first} (within the limit)" if within else str(first))
    if line.note:
        remarks.append(line.note)
    cells = [
        cell(claim_text(line)),
        cell(line.setting),
        cell(execution.device),
        cell(execution.dtype),
        cell(str(execution.batch), "number"),
        cell(execution.path),
        cell(max_abs, "number"),
        cell(max_rel, "number"),
        f'<td class="number" title="{escape(line.tolerance.reason)}">{escape(limit)}</td>',
        cell(line.verdict.value, f"result {style}"),
        cell("; ".join(remarks), "small"),
    ]
    return f'<tr class="{row_class}">{"".join(cells)}</tr>'
