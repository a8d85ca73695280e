"""Standard error as the user sees it: lines, one line that is rewritten, progress bars; tables on standard output.

Owns the rewritten line of one process. Knows nothing of speech.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from rich.table import Table


def note(line: str) -> None:
    """One line to standard error."""
    click.echo(f"legato: {line}", err=True)


class StatusLine:
    """A line on standard error that is rewritten on a terminal; elsewhere it is printed once in `every_s` seconds."""

    def __init__(self, *, every_s: float = 2.0) -> None:
        self.live = sys.stderr.isatty()
        self._every_s = every_s
        self._next_s = 0.0
        self._shown = False

    def show(self, line: str, now_s: float) -> None:
        """Show `line` as of `now_s`."""
        if self.live:
            width = shutil.get_terminal_size().columns - 1
            click.echo(f"\r\x1b[2K{line[:width]}", nl=False, err=True)
            self._shown = True
        elif now_s >= self._next_s:
            click.echo(line, err=True)
            self._next_s = now_s + self._every_s

    def clear(self) -> None:
        """Make room for other lines."""
        if self._shown:
            click.echo("\r\x1b[2K", nl=False, err=True)
            self._shown = False


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A plain table on standard output."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))
    print_rich(table)


def print_rich(table: Table) -> None:
    """A table on standard output; in a pipe each row is one line, whatever its width."""
    from rich.console import Console

    if sys.stdout.isatty():
        Console(highlight=False).print(table)
        return
    console = Console(highlight=False, width=1000)
    with console.capture() as captured:
        console.print(table)
    click.echo("\n".join(line.rstrip() for line in captured.get().splitlines()))
