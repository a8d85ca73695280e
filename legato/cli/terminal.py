"""Terminal output: lines, a status line and progress on standard error; tables on standard output.

A `StatusLine` is created by a command and used while the command runs.
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
    """Print one line to standard error."""
    click.echo(f"legato: {line}", err=True)


def is_verbose() -> bool:
    """Whether --verbose or --debug was given to the running command."""
    context = click.get_current_context(silent=True)
    if context is None:
        return False
    params = context.find_root().params
    return bool(params.get("verbose") or params.get("debug"))


class StatusLine:
    """A status line on standard error. A terminal updates it in place; otherwise a line is printed every `every_s`."""

    def __init__(self, *, every_s: float = 2.0) -> None:
        self.live = sys.stderr.isatty()
        self._every_s = every_s
        self._next_s = 0.0
        self._shown = False

    def show(self, line: str, now_s: float) -> None:
        """Show `line`; `now_s` is the caller's monotonic clock."""
        if self.live:
            width = shutil.get_terminal_size().columns - 1
            click.echo(f"\r\x1b[2K{line[:width]}", nl=False, err=True)
            self._shown = True
        elif now_s >= self._next_s:
            click.echo(line, err=True)
            self._next_s = now_s + self._every_s

    def clear(self) -> None:
        """Erase the line from the terminal."""
        if self._shown:
            click.echo("\r\x1b[2K", nl=False, err=True)
            self._shown = False


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a plain table to standard output."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))
    print_rich(table)


def print_rich(table: Table) -> None:
    """Print a table to standard output. If that is not a terminal, each row is one line of any width."""
    from rich.console import Console

    if sys.stdout.isatty():
        Console(highlight=False).print(table)
        return
    console = Console(highlight=False, width=1000)
    with console.capture() as captured:
        console.print(table)
    click.echo("\n".join(line.rstrip() for line in captured.get().splitlines()))
