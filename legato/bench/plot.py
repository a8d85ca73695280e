"""Plots as inline SVG that needs nothing beside it: stacked bars, lines, cumulative distributions. Pure.

Colours, fonts and strokes are classes of the page's own style, so that light and dark are one picture. Every mark tells
its value when pointed at. Owns nothing; knows no record.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH = 880
LEFT, RIGHT, TOP = 64, 24, 12
CHARACTER = 6.6
"""Width of a letter of a label, roughly: enough to keep labels apart."""
COLOURS = 12


@dataclass(frozen=True, slots=True)
class Line:
    """A named row of points; `dashed` for what accompanies another line of the same colour."""

    name: str
    points: tuple[tuple[float, float], ...]
    colour: int
    dashed: bool = False


@dataclass(frozen=True, slots=True)
class Axis:
    """A scale from `least` to `most`, linear or logarithmic, in `unit`s."""

    title: str
    least: float
    most: float
    log: bool = False

    def share(self, value: float) -> float:
        """Where `value` lies between the ends, 0 to 1."""
        if self.log:
            span = math.log(self.most / self.least)
            return math.log(max(value, self.least) / self.least) / span
        return (value - self.least) / (self.most - self.least)

    def ticks(self) -> list[float]:
        """Round numbers along it."""
        if self.log:
            exponents = range(math.floor(math.log10(self.least)), math.ceil(math.log10(self.most)) + 1)
            marks = [factor * 10.0**exponent for exponent in exponents for factor in (1, 2, 5)]
        else:
            step = _round_step((self.most - self.least) / 6)
            marks = [step * at for at in range(math.floor(self.least / step), math.ceil(self.most / step) + 1)]
        slack = 1e-9 * abs(self.most)
        return [mark for mark in marks if self.least - slack <= mark <= self.most + slack]


def linear(title: str, values: Sequence[float]) -> Axis:
    """From 0 to a little over the largest value."""
    return Axis(title, 0.0, 1.05 * max(values, default=0.0) or 1.0)


def logarithmic(title: str, values: Sequence[float]) -> Axis:
    """From the smallest positive value to the largest, to whole steps of 1, 2 and 5."""
    above = [value for value in values if value > 0] or [1.0]
    return Axis(title, 0.9 * min(above), 1.1 * max(above), log=True)


def stacked_bars(names: Sequence[str], parts: Sequence[tuple[str, Sequence[float]]], *, title: str, unit: str) -> str:
    """A bar for each name, its parts laid end to end. `parts`: name of the part, its value in each bar."""
    totals = [sum(max(0.0, values[at]) for _, values in parts) for at in range(len(names))]
    axis = linear(title, totals)
    row, top = 46, TOP
    bottom = top + row * len(names)
    body: list[str] = []
    for at, name in enumerate(names):
        y = top + row * at
        body.append(_text(LEFT - 52, y + 13, f"{name}: {totals[at]:,.1f} {unit}", "label"))
        start = 0.0
        for colour, (part, values) in enumerate(parts):
            value = max(0.0, values[at])
            x = _x(axis, start)
            told = f"{name}, {part}: {values[at]:,.2f} {unit}"
            wide = max(0.0, _x(axis, start + value) - x)
            if wide > 0:
                body.append(_rect(x, y + 19, wide, 18, colour, told))
            start += value
    shown = [(at, part) for at, (part, values) in enumerate(parts) if any(value > 0 for value in values)]
    legend, height = _legend([(part, at, False) for at, part in shown], bottom + 52)
    return _svg([*_across(axis, top, bottom), *body, *legend], height, title)


def lines(
    drawn: Sequence[Line], x: Axis, y: Axis, *, marks: Sequence[tuple[float, str]] = (), dots: bool = True
) -> str:
    """Lines with their points. `marks`: upright lines at values of x, with what they mean."""
    top, bottom = TOP, TOP + 260

    def place(point: tuple[float, float]) -> tuple[float, float]:
        return _x(x, point[0]), bottom - (bottom - top) * y.share(point[1])

    body = [*_across(x, top, bottom), *_up(y, top, bottom)]
    for value, meaning in marks:
        at, before = _x(x, value), x.share(value) > 0.5
        body.append(f'<line class="mark" x1="{at:.1f}" x2="{at:.1f}" y1="{top}" y2="{bottom}"/>')
        body.append(_text(at + (-5 if before else 5), bottom - 8, meaning, "small end" if before else "small"))
    for line in drawn:
        placed = [place(point) for point in line.points]
        path = " ".join(f"{px:.1f},{py:.1f}" for px, py in placed)
        style = f"line c{line.colour % COLOURS}" + (" dashed" if line.dashed else "")
        body.append(f'<polyline class="{style}" points="{path}"><title>{escape(line.name)}</title></polyline>')
        for (px, py), (vx, vy) in zip(placed, line.points, strict=True) if dots else ():
            told = f"{line.name}: {vy:,.4g} at {vx:,.4g}"
            body.append(
                f'<circle class="dot c{line.colour % COLOURS}" cx="{px:.1f}" cy="{py:.1f}" r="4">'
                f"<title>{escape(told)}</title></circle>"
            )
    legend, height = _legend([(line.name, line.colour, line.dashed) for line in drawn], bottom + 52)
    return _svg([*body, *legend], height, f"{y.title} against {x.title}")


def shares(values: Sequence[float]) -> tuple[tuple[float, float], ...]:
    """The share of `values` that are at most each of them, as steps."""
    ranked, points = sorted(values), list[tuple[float, float]]()
    for rank, value in enumerate(ranked):
        points += [(value, rank / len(ranked)), (value, (rank + 1) / len(ranked))]
    return tuple(points)


# --- pieces ----------------------------------------------------------------------------------------------------------


def _x(axis: Axis, value: float) -> float:
    return LEFT + (WIDTH - LEFT - RIGHT) * axis.share(value)


def _across(axis: Axis, top: float, bottom: float) -> list[str]:
    """The x axis with its grid."""
    drawn, free = list[str](), 0.0
    for tick in axis.ticks():
        x, text = _x(axis, tick), _figure(tick)
        drawn.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{top}" y2="{bottom}"/>')
        if x - CHARACTER * len(text) / 2 >= free:
            drawn.append(_text(x, bottom + 17, text, "tick middle"))
            free = x + CHARACTER * (len(text) / 2 + 1)
    drawn.append(_text((LEFT + WIDTH - RIGHT) / 2, bottom + 35, axis.title, "tick middle"))
    return drawn


def _up(axis: Axis, top: float, bottom: float) -> list[str]:
    """The y axis with its grid."""
    turned = f"translate(13 {(top + bottom) / 2}) rotate(-90)"
    drawn = [f'<text class="tick middle" transform="{turned}">{escape(axis.title)}</text>']
    for tick in axis.ticks():
        y = bottom - (bottom - top) * axis.share(tick)
        drawn.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        drawn.append(_text(LEFT - 7, y + 4, _figure(tick), "tick end"))
    return drawn


def _legend(entries: Sequence[tuple[str, int, bool]], top: float) -> tuple[list[str], float]:
    """Names beside their colours, wrapped; and where it ends."""
    drawn, x, y = list[str](), float(LEFT), top
    for name, colour, dashed in entries:
        wide = 26 + CHARACTER * len(name) + 14
        if x + wide > WIDTH and x > LEFT:
            x, y = float(LEFT), y + 20
        if dashed:
            style = f"line c{colour % COLOURS} dashed"
            drawn.append(f'<line class="{style}" x1="{x}" x2="{x + 18}" y1="{y + 6}" y2="{y + 6}"/>')
        else:
            drawn.append(_rect(x, y, 12, 12, colour, name))
        drawn.append(_text(x + (24 if dashed else 18), y + 10, name, "label"))
        x += wide
    return drawn, y + 24


def _rect(x: float, y: float, wide: float, high: float, colour: int, told: str) -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" width="{wide:.1f}" height="{high}"'
    return f'<rect class="fill c{colour % COLOURS}" {place}><title>{escape(told)}</title></rect>'


def _text(x: float, y: float, text: str, style: str) -> str:
    return f'<text class="{style}" x="{x:.1f}" y="{y:.1f}">{escape(text)}</text>'


def _svg(body: Sequence[str], height: float, told: str) -> str:
    inner = "\n".join(body)
    return f'<svg viewBox="0 0 {WIDTH} {height:.0f}" role="img" aria-label="{escape(told)}">\n{inner}\n</svg>'


def _round_step(step: float) -> float:
    """The smallest of 1, 2, 5 times a power of ten that is not below `step`."""
    power = 10.0 ** math.floor(math.log10(step))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= step * (1 - 1e-9))


def _figure(value: float) -> str:
    return f"{value:,.6g}"
