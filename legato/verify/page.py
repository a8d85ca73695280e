"""A run's lines as one HTML page that needs nothing beside it: no script, no font, no image, light and dark.

Shows every line, unfolded. Everything that comes from a model's name or an error is escaped.
"""

from __future__ import annotations

from html import escape
from itertools import groupby

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
:root { color-scheme: light dark; --ink: #1d2327; --soft: #5a646b; --paper: #fff; --band: #f3f5f6; --line: #d7dcdf;
  --good: #12703a; --bad: #b3141e; --measured: #8a5a00; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6eaec; --soft: #9aa6ad; --paper: #14181a; --band: #1d2326;
  --line: #343c40; --good: #5fce8b; --bad: #ff7b80; --measured: #e5b454; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 100rem; padding: 1.5rem; background: var(--paper); color: var(--ink);
  font: 15px/1.45 system-ui, sans-serif; }
h1 { font-size: 1.5rem; margin: 0 0 .5rem; }
h2 { font-size: 1.1rem; margin: 2rem 0 .5rem; }
.verdict { font-size: 1.1rem; font-weight: 600; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .15rem 1rem; }
dt { color: var(--soft); }
dd { margin: 0; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: .85rem; }
th, td { text-align: left; vertical-align: top; padding: .25rem .6rem .25rem 0; border-bottom: 1px solid var(--line); }
th { color: var(--soft); font-weight: 600; }
tr.control td:first-child { padding-left: 1rem; }
tr.bad td { background: var(--band); }
td.number { font-variant-numeric: tabular-nums; text-align: right; white-space: nowrap; }
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
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>legato verify: {escape(name)}</title><style>{STYLE}</style></head><body>",
        f"<h1>legato verify: {escape(name)}</h1>",
        f'<p class="verdict {verdict}">{escape(str(report.tally))}</p>',
        f"<p>{escape(INTRODUCTION)}</p>",
        "<dl>",
        *(f"<dt>{escape(fact)}</dt><dd>{escape(value)}</dd>" for fact, value in report.facts),
        "</dl>",
    ]
    for group, lines in groupby(report.lines, key=lambda line: line.group):
        parts.append(f'<h2>{escape(group)}</h2><div class="wide"><table><thead><tr>')
        parts += [f"<th>{heading}</th>" for heading in HEADINGS]
        parts.append("</tr></thead><tbody>")
        parts += [row_of(line) for line in lines]
        parts.append("</tbody></table></div>")
    parts.append("<h2>Where the limits come from</h2><ul>")
    parts += [f"<li>{escape(reason)}</li>" for reason in legend(report)]
    parts.append("</ul></body></html>")
    return "\n".join(parts) + "\n"


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
        _cell(claim),
        _cell(line.setting),
        _cell(where.device),
        _cell(where.dtype),
        _cell(str(where.batch), "number"),
        _cell(where.path),
        _cell(max_abs, "number"),
        _cell(max_rel, "number"),
        f'<td class="number" title="{escape(line.tolerance.reason)}">{escape(limit)}</td>',
        _cell(line.verdict.value, f"result {style}"),
        _cell("; ".join(each for each in (first, line.note) if each), "small"),
    ]
    return f'<tr class="{style}{control}">{"".join(cells)}</tr>'


def _cell(text: str, style: str = "") -> str:
    return f'<td class="{style}">{escape(text)}</td>' if style else f"<td>{escape(text)}</td>"
