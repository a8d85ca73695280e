"""`legato verify`: is streaming exact on this machine, with these weights? Errors and limits, never a speed."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from legato.cli.model_options import (
    LoadingLine,
    check_device,
    compute_options,
    graphs_option,
    locate_chosen,
    model_option,
    quant_option,
    set_threads,
    tell_notes,
)
from legato.cli.terminal import StatusLine, print_rich
from legato.config.quantization import NONE
from legato.errors import InputError

if TYPE_CHECKING:
    from legato.models.load import LoadedModel
    from legato.verify.run import Progress, Report

EPILOG = """\b
Examples:
  legato verify                           the voice in this package
  legato verify ./checkpoint --quick
  legato verify ./checkpoint --group "codec decoder"
  legato verify 0.6B-Base --dtype bfloat16 --html report.html --json report.json

Each claim compares one computation in pieces, in company or from a kept state with the same done whole and alone.
Each group of claims has controls: the same check with a fault put in, which must be caught.

Exit code 0 if all claims hold and all controls are caught, 1 if not, 2 if it could not run.
"""


@click.command(epilog=EPILOG, short_help="Check that streaming changes nothing.")
@click.argument("named", metavar="[MODEL]", required=False)
@model_option
@click.option("--quick", is_flag=True, help="Shorter texts, fewer splits: under a minute for the embedded voice.")
@click.option("--group", "groups", multiple=True, metavar="NAME", help="This group of checks alone; repeatable.")
@click.option("--json", "json_path", type=click.Path(path_type=Path, dir_okay=False), help="Write all lines as JSON.")
@click.option("--html", "html_path", type=click.Path(path_type=Path, dir_okay=False), help="Write a page to read.")
@click.option("--all", "every_line", is_flag=True, help="Show every line, not only the worst of those alike.")
@click.option(
    "--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Chooses codes, texts' noise, splits."
)
@compute_options
@quant_option
@graphs_option
def verify(
    named: str | None,
    model: str,
    quick: bool,
    groups: tuple[str, ...],
    json_path: Path | None,
    html_path: Path | None,
    every_line: bool,
    seed: int,
    device: str,
    dtype: str,
    codec_dtype: str,
    threads: int | None,
    quant: str,
    graphs: bool,
) -> int:
    """Check MODEL: windows, caches, batches, cancels, reused slots, text in pieces and cloned voices change nothing."""
    from legato.verify.page import to_html
    from legato.verify.report import to_json
    from legato.verify.run import check_groups, verify_model
    from legato.verify.subject import FULL, QUICK

    for path in (json_path, html_path):
        if path is not None and not path.absolute().parent.is_dir():
            raise InputError(f"there is no folder {str(path.absolute().parent)!r}", field="output")
    check_groups(groups)
    check_device(device)
    set_threads(threads)
    loaded = load_weights(named or model, device, dtype, codec_dtype, quant)
    shown = ProgressLine()
    try:
        report = verify_model(
            loaded,
            name=named or model,
            depth=QUICK if quick else FULL,
            seed=seed,
            progress=shown.show,
            groups=groups,
            graphs=graphs,
        )
    finally:
        shown.clear()
    print_report(report, every_line=every_line)
    if json_path is not None:
        json_path.write_text(to_json(report), encoding="utf-8")
    if html_path is not None:
        html_path.write_text(to_html(report), encoding="utf-8")
    return 0 if report.passed else 1


def load_weights(model: str, device: str, dtype: str, codec_dtype: str, quant: str = NONE) -> LoadedModel:
    """The checkpoint, loaded once, with progress on standard error; then by what it computes."""
    from legato.models.load import load_model

    auto = "float32" if device.startswith("cpu") else "bfloat16"
    shown = LoadingLine()
    try:
        loaded = load_model(
            locate_chosen(model),
            talker_dtype=auto if dtype == "auto" else dtype,
            codec_dtype="float32" if codec_dtype == "auto" else codec_dtype,
            device=device,
            quant=quant,
            progress=shown.show,
        )
    finally:
        shown.clear()
    tell_notes(loaded)
    return loaded


def print_report(report: Report, *, every_line: bool) -> None:
    """Facts, a table a group, where the limits come from, and the verdict last."""
    from legato.verify.report import legend, tables

    for fact, value in report.facts:
        click.echo(f"{fact}: {value}")
    for table in tables(report, every_line=every_line):
        click.echo()
        print_rich(table)
    click.echo("\nWhere the limits come from:")
    for reason in legend(report):
        click.echo(f"  {reason}")
    click.echo(f"\n{report.tally}")


class ProgressLine:
    """How far the checks have come, as one rewritten line on standard error."""

    def __init__(self) -> None:
        self._line = StatusLine(every_s=5.0)

    def show(self, progress: Progress) -> None:
        """Called after every line of the report."""
        text = f"verify: {progress.group} ({progress.number + 1} of {progress.groups}), {progress.lines} lines so far"
        self._line.show(text, time.monotonic())

    def clear(self) -> None:
        """Done."""
        self._line.clear()
