"""A table of a report before it is shown: the same cells for the terminal and for the page. Owns and measures nothing.

Numbers come as text, so that both show the same digits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from rich.table import Table
from rich.text import Text


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
    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False, header_style="dim")
    for at, heading in enumerate(grid.headings):
        table.add_column(Text(heading), justify="left" if at < grid.left else "right")
    for at, row in enumerate(grid.rows):
        table.add_row(*(Text(cell) for cell in row), style="bold" if at in grid.marked else "")
    return table


def to_html(grid: Grid) -> str:
    """For a page; everything escaped."""
    heads = "".join(f"<th{_number(grid, at)}>{escape(each)}</th>" for at, each in enumerate(grid.headings))
    rows = [_row(grid, at, row) for at, row in enumerate(grid.rows)]
    note = f'<p class="note">{escape(grid.note)}</p>' if grid.note else ""
    body = "\n".join(rows)
    table = f"<table><thead><tr>{heads}</tr></thead><tbody>\n{body}\n</tbody></table>"
    return f'<h2>{escape(grid.title)}</h2>{note}<div class="wide">{table}</div>'


def _row(grid: Grid, at: int, row: Sequence[str]) -> str:
    style = ' class="marked"' if at in grid.marked else ""
    return f"<tr{style}>{''.join(f'<td{_number(grid, at)}>{escape(cell)}</td>' for at, cell in enumerate(row))}</tr>"


def _number(grid: Grid, column: int) -> str:
    return "" if column < grid.left else ' class="number"'
