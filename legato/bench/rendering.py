"""Render tables and plots as Rich tables, HTML and inline SVG. Pure functions; the caller formats numbers.

SVG colours and strokes are CSS classes of the page, so that a plot works in light and dark mode. Every data point has a
tooltip with its value.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from rich.table import Table
from rich.text import Text

from legato.html_report import cell, html_document, metadata_list, section, table


@dataclass(frozen=True, slots=True)
class ReportTable:
    """A table of formatted cells. `title`: its subject; `note`: how to read it.

    The first `text_columns` columns are text, the others numbers. `highlighted`: indices of rows such as sums.
    """

    title: str
    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""
    text_columns: int = 1
    highlighted: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.headings):
                raise ValueError(f"{self.title}: {len(row)} cells under {len(self.headings)} headings")


def to_rich(report_table: ReportTable) -> Table:
    """The table for a terminal."""
    title = f"{report_table.title}\n[dim]{report_table.note}[/dim]" if report_table.note else report_table.title
    shown = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False, header_style="dim")
    for index, heading in enumerate(report_table.headings):
        shown.add_column(Text(heading), justify="left" if index < report_table.text_columns else "right")
    for index, row in enumerate(report_table.rows):
        shown.add_row(*map(Text, row), style="bold" if index in report_table.highlighted else "")
    return shown


def to_html(report_table: ReportTable) -> str:
    """The table for an HTML page; all text is escaped."""
    heads = [cell(heading, _kind(report_table, index), tag="th") for index, heading in enumerate(report_table.headings)]
    rows = [_row(report_table, index, row) for index, row in enumerate(report_table.rows)]
    return section(report_table.title, table(heads, rows), report_table.note)


def _row(report_table: ReportTable, at: int, row: Sequence[str]) -> str:
    style = ' class="marked"' if at in report_table.highlighted else ""
    return f"<tr{style}>{''.join(cell(text, _kind(report_table, column)) for column, text in enumerate(row))}</tr>"


def _kind(report_table: ReportTable, column: int) -> str:
    return "" if column < report_table.text_columns else "number"


WIDTH = 880
LEFT, RIGHT, TOP = 64, 24, 12
CHARACTER_WIDTH = 6.6
"""Approximate width of a character of a label, to keep labels apart."""
COLOURS = 12


@dataclass(frozen=True, slots=True)
class Line:
    """A named series of points; `dashed` for a second series of the same colour."""

    name: str
    points: tuple[tuple[float, float], ...]
    colour: int
    dashed: bool = False


@dataclass(frozen=True, slots=True)
class Axis:
    """An axis from `minimum` to `maximum`, linear or logarithmic."""

    title: str
    minimum: float
    maximum: float
    log: bool = False

    def fraction(self, value: float) -> float:
        """The position of `value` along the axis, 0 to 1."""
        if self.log:
            span = math.log(self.maximum / self.minimum)
            return math.log(max(value, self.minimum) / self.minimum) / span
        return (value - self.minimum) / (self.maximum - self.minimum)

    def ticks(self) -> list[float]:
        """Round values along the axis."""
        if self.log:
            exponents = range(math.floor(math.log10(self.minimum)), math.ceil(math.log10(self.maximum)) + 1)
            marks = [factor * 10.0**exponent for exponent in exponents for factor in (1, 2, 5)]
        else:
            step = _round_step((self.maximum - self.minimum) / 6)
            marks = [
                step * index for index in range(math.floor(self.minimum / step), math.ceil(self.maximum / step) + 1)
            ]
        slack = 1e-9 * abs(self.maximum)
        return [mark for mark in marks if self.minimum - slack <= mark <= self.maximum + slack]


def linear_axis(title: str, values: Sequence[float]) -> Axis:
    """An axis from 0 to slightly above the largest value."""
    return Axis(title, 0.0, 1.05 * max(values, default=0.0) or 1.0)


def log_axis(title: str, values: Sequence[float]) -> Axis:
    """A logarithmic axis from slightly below the smallest positive value to slightly above the largest."""
    above = [value for value in values if value > 0] or [1.0]
    return Axis(title, 0.9 * min(above), 1.1 * max(above), log=True)


def stacked_bars(names: Sequence[str], parts: Sequence[tuple[str, Sequence[float]]], *, title: str, unit: str) -> str:
    """One bar per name, with its parts end to end. `parts`: the name of each part and its value in each bar."""
    totals = [sum(max(0.0, values[index]) for _, values in parts) for index in range(len(names))]
    axis = linear_axis(title, totals)
    row, top = 46, TOP
    bottom = top + row * len(names)
    body: list[str] = []
    for index, name in enumerate(names):
        y = top + row * index
        body.append(_text(LEFT - 52, y + 13, f"{name}: {totals[index]:,.1f} {unit}", "label"))
        start = 0.0
        for colour, (part, values) in enumerate(parts):
            value = max(0.0, values[index])
            x = _x(axis, start)
            tooltip = f"{name}, {part}: {values[index]:,.2f} {unit}"
            wide = max(0.0, _x(axis, start + value) - x)
            if wide > 0:
                body.append(_rect(x, y + 19, wide, 18, colour, tooltip))
            start += value
    shown = [(index, part) for index, (part, values) in enumerate(parts) if any(value > 0 for value in values)]
    legend, height = _legend([(part, index, False) for index, part in shown], bottom + 52)
    return _svg([*_x_axis(axis, top, bottom), *body, *legend], height, title)


def line_plot(
    series: Sequence[Line], x: Axis, y: Axis, *, marks: Sequence[tuple[float, str]] = (), dots: bool = True
) -> str:
    """Lines with their points. `marks`: vertical lines at values of x, with labels."""
    top, bottom = TOP, TOP + 260

    def place(point: tuple[float, float]) -> tuple[float, float]:
        return _x(x, point[0]), bottom - (bottom - top) * y.fraction(point[1])

    body = [*_x_axis(x, top, bottom), *_y_axis(y, top, bottom)]
    for value, meaning in marks:
        index, before = _x(x, value), x.fraction(value) > 0.5
        body.append(f'<line class="mark" x1="{index:.1f}" x2="{index:.1f}" y1="{top}" y2="{bottom}"/>')
        body.append(_text(index + (-5 if before else 5), bottom - 8, meaning, "small end" if before else "small"))
    for line in series:
        placed = [place(point) for point in line.points]
        path = " ".join(f"{px:.1f},{py:.1f}" for px, py in placed)
        style = f"line c{line.colour % COLOURS}" + (" dashed" if line.dashed else "")
        body.append(f'<polyline class="{style}" points="{path}"><title>{escape(line.name)}</title></polyline>')
        for (px, py), (vx, vy) in zip(placed, line.points, strict=True) if dots else ():
            tooltip = f"{line.name}: {vy:,.4g} at {vx:,.4g}"
            body.append(
                f'<circle class="dot c{line.colour % COLOURS}" cx="{px:.1f}" cy="{py:.1f}" r="4">'
                f"<title>{escape(tooltip)}</title></circle>"
            )
    legend, height = _legend([(line.name, line.colour, line.dashed) for line in series], bottom + 52)
    return _svg([*body, *legend], height, f"{y.title} against {x.title}")


def cumulative_distribution(values: Sequence[float]) -> tuple[tuple[float, float], ...]:
    """The empirical cumulative distribution of `values`, as steps."""
    ranked, points = sorted(values), list[tuple[float, float]]()
    for rank, value in enumerate(ranked):
        points += [(value, rank / len(ranked)), (value, (rank + 1) / len(ranked))]
    return tuple(points)


# --- SVG elements -----------------------------------------------------------------------------------------------------


def _x(axis: Axis, value: float) -> float:
    return LEFT + (WIDTH - LEFT - RIGHT) * axis.fraction(value)


def _x_axis(axis: Axis, top: float, bottom: float) -> list[str]:
    """The x axis with its grid lines. Tick labels that would overlap are left out."""
    elements, free = list[str](), 0.0
    for tick in axis.ticks():
        x, text = _x(axis, tick), _number(tick)
        elements.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{top}" y2="{bottom}"/>')
        if x - CHARACTER_WIDTH * len(text) / 2 >= free:
            elements.append(_text(x, bottom + 17, text, "tick middle"))
            free = x + CHARACTER_WIDTH * (len(text) / 2 + 1)
    elements.append(_text((LEFT + WIDTH - RIGHT) / 2, bottom + 35, axis.title, "tick middle"))
    return elements


def _y_axis(axis: Axis, top: float, bottom: float) -> list[str]:
    """The y axis with its grid lines."""
    rotation = f"translate(13 {(top + bottom) / 2}) rotate(-90)"
    elements = [f'<text class="tick middle" transform="{rotation}">{escape(axis.title)}</text>']
    for tick in axis.ticks():
        y = bottom - (bottom - top) * axis.fraction(tick)
        elements.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        elements.append(_text(LEFT - 7, y + 4, _number(tick), "tick end"))
    return elements


def _legend(entries: Sequence[tuple[str, int, bool]], top: float) -> tuple[list[str], float]:
    """Names and colours, wrapped; returns the elements and the y position below them."""
    elements, x, y = list[str](), float(LEFT), top
    for name, colour, dashed in entries:
        wide = 26 + CHARACTER_WIDTH * len(name) + 14
        if x + wide > WIDTH and x > LEFT:
            x, y = float(LEFT), y + 20
        if dashed:
            style = f"line c{colour % COLOURS} dashed"
            elements.append(f'<line class="{style}" x1="{x}" x2="{x + 18}" y1="{y + 6}" y2="{y + 6}"/>')
        else:
            elements.append(_rect(x, y, 12, 12, colour, name))
        elements.append(_text(x + (24 if dashed else 18), y + 10, name, "label"))
        x += wide
    return elements, y + 24


def _rect(x: float, y: float, wide: float, high: float, colour: int, tooltip: str) -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" width="{wide:.1f}" height="{high}"'
    return f'<rect class="fill c{colour % COLOURS}" {place}><title>{escape(tooltip)}</title></rect>'


def _text(x: float, y: float, text: str, style: str) -> str:
    return f'<text class="{style}" x="{x:.1f}" y="{y:.1f}">{escape(text)}</text>'


def _svg(body: Sequence[str], height: float, tooltip: str) -> str:
    inner = "\n".join(body)
    return f'<svg viewBox="0 0 {WIDTH} {height:.0f}" role="img" aria-label="{escape(tooltip)}">\n{inner}\n</svg>'


def _round_step(step: float) -> float:
    """The smallest of 1, 2, 5 times a power of ten that is at least `step`."""
    power = 10.0 ** math.floor(math.log10(step))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= step * (1 - 1e-9))


def _number(value: float) -> str:
    return f"{value:,.6g}"


STYLE = """
:root { --c0: #8a97a0; --c1: #b9c2c8; --c2: #6d7b85; --c3: #2f6fb3; --c4: #63a0dd; --c5: #7a5bbf; --c6: #b39be0;
  --c7: #d9822b; --c8: #3a9a6b; --c9: #8fcfae; --c10: #c94f6d; --c11: #d9b23a; }
@media (prefers-color-scheme: dark) { :root { --c0: #7b8891; --c1: #4f5a62; --c2: #9aa8b1; --c3: #4b8fd6; --c4: #8fc0f0;
  --c5: #9479d6; --c6: #c4b1ee; --c7: #e69a4c; --c8: #4fb884; --c9: #2f7d57; --c10: #e06d8a; --c11: #e3c258; } }
body { max-width: 76rem; }
p { margin: .25rem 0 .75rem; max-width: 60rem; }
dl { columns: 22rem; column-gap: 2rem; font-size: .9rem; margin: .75rem 0; }
dl div { display: grid; grid-template-columns: 9.5rem 1fr; break-inside: avoid; padding: .05rem 0; }
th, td { vertical-align: bottom; padding: .25rem .9rem .25rem 0; }
td:first-child { white-space: nowrap; }
th.number { white-space: normal; min-width: 4rem; }
tr.marked td { background: var(--band); font-weight: 600; }
svg { display: block; width: 100%; max-width: 60rem; height: auto; font: 12px system-ui, sans-serif; }
svg text { fill: var(--ink); }
svg .tick, svg .small { fill: var(--soft); font-size: 11px; }
svg .middle { text-anchor: middle; }
svg .end { text-anchor: end; }
svg .grid { stroke: var(--line); stroke-width: 1; }
svg .mark { stroke: var(--soft); stroke-width: 1; stroke-dasharray: 2 3; }
svg .line { fill: none; stroke-width: 2; }
svg .dashed { stroke-dasharray: 5 4; }
"""
COLOUR_RULES = "\n".join(
    f"svg .fill.c{at}, svg .dot.c{at} {{ fill: var(--c{at}); }} svg .line.c{at} {{ stroke: var(--c{at}); }}"
    for at in range(12)
)


@dataclass(frozen=True, slots=True)
class Plot:
    """A plot as SVG. `title`: its subject; `note`: how to read it."""

    title: str
    svg: str
    note: str = ""


def html_page(title: str, metadata: Sequence[tuple[str, str]], parts: Sequence[ReportTable | Plot]) -> str:
    """An HTML page: metadata first, then tables and plots in the given order. All text is escaped."""
    shown = [
        to_html(part) if isinstance(part, ReportTable) else section(part.title, part.svg, part.note) for part in parts
    ]
    return html_document(title, [metadata_list(metadata), *shown], style=STYLE + COLOUR_RULES)
