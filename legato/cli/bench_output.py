"""What every `legato bench` command does with its records: tables on standard output, and files where asked for.

Owns nothing after they are written. Files are refused before anything is measured if they cannot be written.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING

import click

from legato.cli.terminal import note, print_rich
from legato.errors import InputError

if TYPE_CHECKING:
    from legato.bench.grid import Grid
    from legato.bench.report import Records

_FILE = click.Path(path_type=Path, dir_okay=False)


@dataclass(frozen=True, slots=True)
class Outputs:
    """Files to write; None for those that nobody wants."""

    records: Path | None
    json_file: Path | None
    html: Path | None

    def __post_init__(self) -> None:
        for name, path in (("--records", self.records), ("--json", self.json_file), ("--html", self.html)):
            if path is not None and not path.absolute().parent.is_dir():
                raise InputError(f"there is no folder {str(path.absolute().parent)!r}", field=name)

    def deliver(self, records: Records, title: str) -> None:
        """Print the tables and write the files."""
        from legato.bench.jsonl import to_json as line
        from legato.bench.jsonl import write_lines
        from legato.bench.report import KINDS, tables, to_html, to_json

        print_grids(tables(records))
        kinds = {record: kind for kind, record in KINDS.items()}
        if self.records is not None:
            write_lines(self.records, (line(kinds[type(record)], record) for record in records))
        self.write_summary(lambda: to_json(records), lambda: to_html(records, title))

    def write_summary(self, to_json: Callable[[], str], to_html: Callable[[], str]) -> None:
        """The files other than the records, each made only if it is wanted."""
        for path, text in ((self.json_file, to_json), (self.html, to_html)):
            if path is not None:
                path.write_text(text(), encoding="utf-8")
        for path in (self.records, self.json_file, self.html):
            if path is not None:
                note(f"wrote {path}")


def output_options(*, records: bool = True) -> Callable[[Callable[..., object]], Callable[..., object]]:
    """`--records --json --html`, handed over as one `outputs`."""
    options = [
        click.option("--html", type=_FILE, help="Also write one page with tables and plots."),
        click.option("--json", "json_file", type=_FILE, help="Also write the summaries, with full digits."),
    ]
    if records:
        options.append(click.option("--records", type=_FILE, help="Also write every record, one JSON object a line."))

    def decorate(function: Callable[..., object]) -> Callable[..., object]:
        @wraps(function)
        def wrapped(*arguments: object, **given: object) -> object:
            paths = [given.pop(name, None) for name in ("records", "json_file", "html")]
            return function(*arguments, outputs=Outputs(*paths), **given)  # type: ignore[arg-type]

        decorated: Callable[..., object] = wrapped
        for option in options:
            decorated = option(decorated)
        return decorated

    return decorate


def print_grids(grids: list[Grid]) -> None:
    """Each table with a line above it."""
    from legato.bench.grid import to_rich

    for grid in grids:
        click.echo()
        print_rich(to_rich(grid))


def numbers(option: str) -> Callable[[click.Context, click.Parameter, str], tuple[float, ...]]:
    """A callback that reads `1,3,6`."""

    def read(_ctx: click.Context, _param: click.Parameter, value: str) -> tuple[float, ...]:
        try:
            given = tuple(float(part) for part in value.split(",") if part.strip())
        except ValueError:
            given = (-1.0,)
        if any(not 0 < number < float("inf") for number in given):
            raise click.BadParameter(f"give numbers above 0 like 1,3,6, not {value!r}", param_hint=option)
        return given

    return read
