"""`legato bench compare`: ratios of the same requests in two record files, and the spread of the ratios.

Holds no state and measures nothing.
"""

from __future__ import annotations

import json
from pathlib import Path

import click

from legato.cli.bench_output import Outputs, output_options, print_tables
from legato.errors import InputError

_FILE = click.Path(path_type=Path, exists=True, dir_okay=False)

EPILOG = """\b
Examples:
  legato bench compare before.jsonl after.jsonl
  legato bench compare fp32.jsonl bf16.jsonl --html compare.html

A and B are record files (--records). Requests are paired by text, seed, transport, concurrency and packet sizes, so
each ratio compares two runs of the same request; the spread of the ratios shows the noise of the machine. Differences
in metadata between A and B (machine, dtype, version, slots) are printed first. To confirm a small difference, alternate
runs of A and B with --processes.
"""


@click.command(epilog=EPILOG, short_help="Compare two runs, request by request.")
@click.argument("a", type=_FILE)
@click.argument("b", type=_FILE)
@output_options(records=False)
def compare(a: Path, b: Path, outputs: Outputs) -> None:
    """Compare the records in A and B: the ratio B/A of each metric."""
    from legato.bench.compare import compare as compared
    from legato.bench.compare import comparison_json, comparison_tables
    from legato.bench.jsonl import read_lines
    from legato.bench.records import RECORD_TYPES
    from legato.bench.rendering import html_page

    comparison = compared(list(read_lines(a, RECORD_TYPES)), list(read_lines(b, RECORD_TYPES)))
    if not comparison.ratios:
        raise InputError(f"{a.name} and {b.name} have no request in common: measure both with the same options")
    tables = list(comparison_tables(comparison))
    print_tables(tables)
    if comparison.unpaired:
        click.echo(f"\n{comparison.unpaired} values have no counterpart in the other file")
    title = f"legato bench compare: {a.name} and {b.name}"
    outputs.write_summary(
        lambda: json.dumps(comparison_json(comparison), ensure_ascii=False, indent=1) + "\n",
        lambda: html_page(title, [("A", a.name), ("B", b.name)], tables),
    )
