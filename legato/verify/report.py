"""A run's lines for a terminal and as JSON. Owns the JSON's schema; says what was computed, never how long it took.

In the terminal, lines that say the same of many settings are folded into one, unless something is wrong with them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby

from rich.table import Table
from rich.text import Text

from legato.verify.lines import BAD, CheckLine, Kind, Verdict, Where
from legato.verify.run import Report

SCHEMA = "legato-verify-1"
COLUMNS = ("check", "setting", "device", "dtype", "batch", "max abs", "max rel", "limit", "result")
_RIGHT = frozenset({"batch", "max abs", "max rel", "limit"})
_STYLE = {
    Verdict.EQUAL: "green",
    Verdict.CAUGHT: "green",
    Verdict.DIFFERENT: "bold red",
    Verdict.NOT_CAUGHT: "bold red",
    Verdict.MEASURED: "yellow",
    Verdict.NOT_APPLICABLE: "dim",
}

JsonValue = str | int | float | bool | Sequence["JsonValue"] | Mapping[str, "JsonValue"]


# --- terminal --------------------------------------------------------------------------------------------------------


def tables(report: Report, *, every_line: bool = False) -> Iterator[Table]:
    """One table a group. `every_line` folds nothing."""
    for group, lines in groupby(report.lines, key=lambda line: line.group):
        table = Table(title=group, title_justify="left", title_style="bold", box=None, pad_edge=False)
        for heading in COLUMNS:
            table.add_column(heading, justify="right" if heading in _RIGHT else "left", overflow="fold")
        for alike in fold(list(lines), every_line=every_line):
            table.add_row(*row_of(alike))
        yield table


def fold(lines: Sequence[CheckLine], *, every_line: bool) -> list[list[CheckLine]]:
    """Lines that differ in setting and path alone, together; a bad one always by itself."""
    folded: dict[tuple[object, ...], list[CheckLine]] = {}
    for at, line in enumerate(lines):
        alone = every_line or line.bad
        where = (line.where.device, line.where.dtype, line.where.batch)
        folded.setdefault((line.claim, line.kind, where, at if alone else -1), []).append(line)
    return list(folded.values())


def row_of(alike: Sequence[CheckLine]) -> list[Text]:
    """The worst of the lines: nearest to its limit, or beyond it."""
    worst = max(alike, key=nearness)
    claim = f"control: {worst.claim}" if worst.kind is Kind.CONTROL else worst.claim
    setting = worst.setting or worst.note
    if len(alike) > 1:
        setting = f"{len(alike)} settings; here {setting}"
    where = worst.where
    shown = [claim, setting, where.device, where.dtype, str(where.batch), *figures(worst)]
    return [*map(Text, shown), Text(result_of(worst), style=_STYLE[worst.verdict])]


def nearness(line: CheckLine) -> float:
    """How near a claim came to failing, or a control to being missed."""
    ratio = line.comparison.max_abs / line.tolerance.limit if line.tolerance.limit else line.comparison.max_abs
    return -ratio if line.kind is Kind.CONTROL else ratio


def figures(line: CheckLine) -> list[str]:
    """Largest absolute and relative error and the limit, as text."""
    if line.kind is Kind.NOT_APPLICABLE:
        return ["", "", ""]
    found = line.comparison
    return [f"{found.max_abs:.1e}", f"{found.max_rel:.1e}", f"{line.tolerance.limit:.1e}"]


def result_of(line: CheckLine) -> str:
    """The verdict, and where it is bad or measured, what there is to say about it."""
    said = line.verdict.value
    if line.verdict in BAD and line.kind is Kind.CLAIM and line.comparison.first:
        return f"{said}: {line.comparison.first[0]}"
    if line.verdict in (Verdict.MEASURED, Verdict.DIFFERENT) and line.note:
        return f"{said}: {line.note}"
    return said


def legend(report: Report) -> list[str]:
    """Where each limit comes from, each reason once."""
    return list(dict.fromkeys(line.tolerance.reason for line in report.lines if line.kind is not Kind.NOT_APPLICABLE))


# --- JSON ------------------------------------------------------------------------------------------------------------


def to_json(report: Report) -> str:
    """The whole report. Infinite and undefined numbers are the strings "inf" and "nan"."""
    tally = report.tally
    value: JsonValue = {
        "schema": SCHEMA,
        "passed": report.passed,
        "facts": dict(report.facts),
        "counts": {verdict.value: count for verdict, count in tally.verdicts.items()},
        "groups_without_control": list(tally.without_control),
        "lines": [line_value(line) for line in report.lines],
    }
    return json.dumps(value, ensure_ascii=False, indent=2, allow_nan=False) + "\n"


def line_value(line: CheckLine) -> JsonValue:
    """One line; `first_difference` holds one item, or none where all values are equal to the bit."""
    found = line.comparison
    return {
        "group": line.group,
        "kind": line.kind.value,
        "claim": line.claim,
        "setting": line.setting,
        **where_value(line.where),
        "max_abs": number(found.max_abs),
        "max_rel": number(found.max_rel),
        "values": found.values,
        "limit": number(line.tolerance.limit),
        "limit_from": line.tolerance.reason,
        "verdict": line.verdict.value,
        "note": line.note,
        "first_difference": [
            {
                "stage": each.stage,
                **dict(each.place),
                "got": number(each.got),
                "expected": number(each.expected),
                "beyond_limit": each.beyond,
            }
            for each in found.first
        ],
    }


def where_value(where: Where) -> dict[str, JsonValue]:
    """Device, dtype, batch and path."""
    return {"device": where.device, "dtype": where.dtype, "batch": where.batch, "path": where.path}


def number(value: float) -> JsonValue:
    """A number that JSON has."""
    return value if math.isfinite(value) else str(value)
