"""Output of the `legato bench` commands: tables on standard output, and optional record, JSON and HTML files.

Holds no state. Output folders are checked before anything is measured.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from legato.cli.options import Decorator, option_group
from legato.cli.terminal import note, print_rich
from legato.errors import InputError

if TYPE_CHECKING:
    from legato.bench.records import Records
    from legato.bench.rendering import ReportTable

_FILE = click.Path(path_type=Path, dir_okay=False)


@dataclass(frozen=True, slots=True)
class Outputs:
    """Files to write; None for those that were not requested."""

    records: Path | None = None
    json_file: Path | None = None
    html: Path | None = None

    def __post_init__(self) -> None:
        for name, path in (("--records", self.records), ("--json", self.json_file), ("--html", self.html)):
            if path is not None and not path.absolute().parent.is_dir():
                raise InputError(f"folder {str(path.absolute().parent)!r} does not exist", field=name)

    def write(self, records: Records, title: str) -> None:
        """Print the tables and write the files."""
        from legato.bench.jsonl import to_json as line
        from legato.bench.jsonl import write_lines
        from legato.bench.records import RECORD_TYPES
        from legato.bench.report import tables, to_html, to_json

        print_tables(tables(records))
        kinds = {record: kind for kind, record in RECORD_TYPES.items()}
        if self.records is not None:
            write_lines(self.records, (line(kinds[type(record)], record) for record in records))
        self.write_summary(lambda: to_json(records), lambda: to_html(records, title))

    def write_summary(self, to_json: Callable[[], str], to_html: Callable[[], str]) -> None:
        """Write the JSON and HTML files that were requested, and list all files."""
        for path, text in ((self.json_file, to_json), (self.html, to_html)):
            if path is not None:
                path.write_text(text(), encoding="utf-8")
        for path in (self.records, self.json_file, self.html):
            if path is not None:
                note(f"wrote {path}")


_HTML = click.option("--html", type=_FILE, help="Write an HTML page with tables and plots.  [default: none]")
_JSON = click.option("--json", "json_file", type=_FILE, help="Write the summaries as JSON.  [default: none]")
_RECORDS = click.option("--records", type=_FILE, help="Write all records, one JSON object per line.  [default: none]")


def output_options(*, records: bool = True) -> Decorator:
    """`--records --json --html`, passed as `outputs`; without `records` only the other two."""
    return option_group("outputs", Outputs, [_RECORDS, _JSON, _HTML] if records else [_JSON, _HTML])


def print_tables(tables: list[ReportTable]) -> None:
    """Print the tables, separated by blank lines."""
    from legato.bench.rendering import to_rich

    for table in tables:
        click.echo()
        print_rich(to_rich(table))


def numbers(option: str) -> Callable[[click.Context, click.Parameter, str], tuple[float, ...]]:
    """An option callback that parses numbers such as `1,3,6`."""

    def read(_ctx: click.Context, _param: click.Parameter, value: str) -> tuple[float, ...]:
        try:
            values = tuple(float(part) for part in value.split(",") if part.strip())
        except ValueError:
            values = (-1.0,)
        if any(not 0 < number < float("inf") for number in values):
            raise click.BadParameter(f"give positive numbers such as 1,3,6, not {value!r}", param_hint=option)
        return values

    return read
