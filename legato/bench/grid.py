"""A table of a report before it is shown: the same cells for the terminal and for the page. Owns and measures nothing.

Numbers come as text, so that both show the same digits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.table import Table
from rich.text import Text

from legato.sheet import cell, section, table


@dataclass(frozen=True, slots=True)
class Grid:
    """`title` says what it shows, `note` how to read it. The first `left` columns are words, the others numbers.

    `marked` rows are set apart: sums, and what was not measured here.
    """

    title: str
    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""
    left: int = 1
    marked: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.headings):
                raise ValueError(f"{self.title}: {len(row)} cells under {len(self.headings)} headings")


def to_rich(grid: Grid) -> Table:
    """For a terminal."""
    title = f"{grid.title}\n[dim]{grid.note}[/dim]" if grid.note else grid.title
    shown = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False, header_style="dim")
    for at, heading in enumerate(grid.headings):
        shown.add_column(Text(heading), justify="left" if at < grid.left else "right")
    for at, row in enumerate(grid.rows):
        shown.add_row(*map(Text, row), style="bold" if at in grid.marked else "")
    return shown


def to_html(grid: Grid) -> str:
    """For a page; everything escaped."""
    heads = [cell(heading, _kind(grid, at), tag="th") for at, heading in enumerate(grid.headings)]
    rows = [_row(grid, at, row) for at, row in enumerate(grid.rows)]
    return section(grid.title, table(heads, rows), grid.note)


def _row(grid: Grid, at: int, row: Sequence[str]) -> str:
    style = ' class="marked"' if at in grid.marked else ""
    return f"<tr{style}>{''.join(cell(text, _kind(grid, column)) for column, text in enumerate(row))}</tr>"


def _kind(grid: Grid, column: int) -> str:
    return "" if column < grid.left else "number"
