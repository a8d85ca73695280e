"""`legato bench compare`: the same requests in two files of records, as quotients and how these spread.

Owns nothing after it printed; measures nothing and judges nothing.
"""

from __future__ import annotations

import json
from pathlib import Path

import click

from legato.cli.bench_output import Outputs, output_options, print_grids
from legato.errors import InputError

_FILE = click.Path(path_type=Path, exists=True, dir_okay=False)

EPILOG = """\b
Examples:
  legato bench compare before.jsonl after.jsonl
  legato bench compare fp32.jsonl bf16.jsonl --html compare.html

A and B are what --records wrote. Requests are paired by text, seed, way, company and packets, so a quotient is of one
request with itself; its spread says how far the machine can be believed. What differs between A and B (machine, dtype,
version, slots) is printed first. Take A and B in turn, several times (--processes), before you believe a small one.
"""


@click.command(epilog=EPILOG, short_help="Two runs side by side, request by request.")
@click.argument("a", type=_FILE)
@click.argument("b", type=_FILE)
@output_options(records=False)
def compare(a: Path, b: Path, outputs: Outputs) -> None:
    """Compare the records in A with those in B: how many times as long B takes."""
    from legato.bench.compare import compare as compared
    from legato.bench.compare import comparison_json, comparison_tables
    from legato.bench.jsonl import read_lines
    from legato.bench.page import to_page
    from legato.bench.report import KINDS

    found = compared(list(read_lines(a, KINDS)), list(read_lines(b, KINDS)))
    if not found.ratios:
        raise InputError(f"{a.name} and {b.name} hold nothing that was asked alike: measure both with the same options")
    grids = list(comparison_tables(found))
    print_grids(grids)
    if found.unpaired:
        click.echo(f"\n{found.unpaired} figures have no partner in the other file")
    title = f"legato bench compare: {a.name} and {b.name}"
    outputs.write_summary(
        lambda: json.dumps(comparison_json(found), ensure_ascii=False, indent=1) + "\n",
        lambda: to_page(title, [("A", a.name), ("B", b.name)], grids),
    )
