"""A run's lines as one HTML page. Shows every line, unfolded.

Owns the style of claims and verdicts, beside that of all such pages (`legato.sheet`). Everything that comes from a
model's name or an error is escaped.
"""

from __future__ import annotations

from html import escape
from itertools import groupby

from legato.sheet import cell, facts_list, section, sheet, table
from legato.verify.lines import CheckLine, Kind, Verdict
from legato.verify.report import figures, legend
from legato.verify.run import Report

HEADINGS = (
    "check",
    "setting",
    "device",
    "dtype",
    "batch",
    "path",
    "max abs",
    "max rel",
    "limit",
    "result",
    "first difference",
)
_CLASS = {
    Verdict.EQUAL: "good",
    Verdict.CAUGHT: "good",
    Verdict.DIFFERENT: "bad",
    Verdict.NOT_CAUGHT: "bad",
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
    "Each claim compares two computations that must agree: one in pieces, in company or from a kept state, and one "
    "whole and alone. Each control is such a comparison with a fault put in, and must notice it. Tokens and noise are "
    "fixed; nothing here says how fast anything is. A relative error is the largest error over the oracle's largest "
    "value."
)


def to_html(report: Report) -> str:
    """The page."""
    name = dict(report.facts).get("model", "")
    verdict = "good" if report.passed else "bad"
    reasons = "\n".join(f"<li>{escape(reason)}</li>" for reason in legend(report))
    parts = [
        f'<p class="verdict {verdict}">{escape(str(report.tally))}</p>',
        f"<p>{escape(INTRODUCTION)}</p>",
        facts_list(report.facts),
    ]
    for group, lines in groupby(report.lines, key=lambda line: line.group):
        parts.append(section(group, table((cell(each, tag="th") for each in HEADINGS), map(row_of, lines))))
    parts.append(f"<h2>Where the limits come from</h2><ul>\n{reasons}\n</ul>")
    return sheet(f"legato verify: {name}", parts, style=STYLE)


def row_of(line: CheckLine) -> str:
    """One line as a table row; the limit's reason is its tooltip and stands in the list below the tables."""
    style = _CLASS[line.verdict]
    control = " control" if line.kind is Kind.CONTROL else ""
    claim = f"control: {line.claim}" if line.kind is Kind.CONTROL else line.claim
    where = line.where
    max_abs, max_rel, limit = figures(line)
    first = "; ".join(
        f"{each}{'' if each.beyond or line.kind is Kind.MEASURED else ' (within the limit)'}"
        for each in line.comparison.first
    )
    cells = [
        cell(claim),
        cell(line.setting),
        cell(where.device),
        cell(where.dtype),
        cell(str(where.batch), "number"),
        cell(where.path),
        cell(max_abs, "number"),
        cell(max_rel, "number"),
        f'<td class="number" title="{escape(line.tolerance.reason)}">{escape(limit)}</td>',
        cell(line.verdict.value, f"result {style}"),
        cell("; ".join(each for each in (first, line.note) if each), "small"),
    ]
    return f'<tr class="{style}{control}">{"".join(cells)}</tr>'
