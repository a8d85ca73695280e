"""`legato bench report`: tables and an HTML page from saved records of one or several runs.

Holds no state and measures nothing.
"""

from __future__ import annotations

from pathlib import Path

import click

from legato.cli.bench_output import Outputs, output_options

EPILOG = """\b
Examples:
  legato bench report latency.jsonl
  legato bench report latency.jsonl load.jsonl batch.jsonl --html report.html --json report.json

FILES are record files of any `legato bench` command (--records). Every line is validated.
"""


@click.command(epilog=EPILOG, short_help="Tables and an HTML page from saved records.")
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path, exists=True, dir_okay=False))
@output_options(records=False)
def report(files: tuple[Path, ...], outputs: Outputs) -> None:
    """Report on the records in FILES."""
    from legato.bench.jsonl import read_lines
    from legato.bench.records import RECORD_TYPES

    records = [record for file in files for record in read_lines(file, RECORD_TYPES)]
    outputs.write(records, f"legato bench: {', '.join(file.stem for file in files)}")
