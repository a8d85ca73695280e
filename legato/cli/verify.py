"""`legato verify`: check that streaming is exact on this machine with this model. Speed is not measured.

Holds no state; the checks are in `legato.verify`.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from legato.cli.loading import load_weights, prepare_device
from legato.cli.model_options import ModelOptions, cuda_graphs_option, model_options
from legato.cli.terminal import StatusLine, print_rich
from legato.errors import InputError

if TYPE_CHECKING:
    from legato.verify.results import Report
    from legato.verify.run import Progress

EPILOG = """\b
Examples:
  legato verify                           the voice in this package
  legato verify --model ./checkpoint --quick
  legato verify ./checkpoint --group "codec decoder"
  legato verify 0.6B-Base --dtype bfloat16 --html report.html --json report.json

Each check compares a streamed, batched or resumed computation with the same computation in one call. Each group also
has negative controls: checks with an injected fault, which must be detected.

Exit code 0 if all checks pass and all injected faults are detected, 1 if not, 2 if the checks could not run.
"""


@click.command(epilog=EPILOG, short_help="Check that streaming does not change the output.")
@model_options(positional=True)
@click.option(
    "--quick", is_flag=True, help="Use shorter texts and fewer splits: under a minute for the embedded voice."
)
@click.option(
    "--group",
    "groups",
    multiple=True,
    metavar="NAME",
    help="Run only this group of checks; repeatable.  [default: all]",
)
@click.option(
    "--json",
    "json_path",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write all results as JSON.  [default: none]",
)
@click.option(
    "--html",
    "html_path",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write a report as an HTML page.  [default: none]",
)
@click.option("--all", "every_line", is_flag=True, help="Print every result, not only the worst of similar ones.")
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Seed for codes, sampling noise and split points.",
)
@cuda_graphs_option
def verify(
    model_options: ModelOptions,
    quick: bool,
    groups: tuple[str, ...],
    json_path: Path | None,
    html_path: Path | None,
    every_line: bool,
    seed: int,
    cuda_graphs: bool,
) -> int:
    """Check that windows, caches, batching, cancellation, slot reuse, streamed text and cloning change no output."""
    from legato.verify.report import to_html, to_json
    from legato.verify.run import check_groups, verify_model
    from legato.verify.target import FULL, QUICK

    for path in (json_path, html_path):
        if path is not None and not path.absolute().parent.is_dir():
            raise InputError(f"folder {str(path.absolute().parent)!r} does not exist", field="output")
    check_groups(groups)
    prepare_device(model_options)
    backend = load_weights(model_options, keep_reference=True)
    progress = ProgressLine()
    try:
        report = verify_model(
            backend,
            name=model_options.model,
            depth=QUICK if quick else FULL,
            seed=seed,
            progress=progress.show,
            groups=groups,
            cuda_graphs=cuda_graphs,
        )
    finally:
        progress.clear()
    print_report(report, every_line=every_line)
    if json_path is not None:
        json_path.write_text(to_json(report), encoding="utf-8")
    if html_path is not None:
        html_path.write_text(to_html(report), encoding="utf-8")
    return 0 if report.passed else 1


def print_report(report: Report, *, every_line: bool) -> None:
    """Print the metadata, one table per group, the sources of the limits, and the verdict."""
    from legato.verify.report import legend, tables

    for name, value in report.metadata:
        click.echo(f"{name}: {value}")
    for table in tables(report, every_line=every_line):
        click.echo()
        print_rich(table)
    click.echo("\nSources of the limits:")
    for reason in legend(report):
        click.echo(f"  {reason}")
    click.echo(f"\n{report.tally}")


class ProgressLine:
    """Progress of the checks, as one status line."""

    def __init__(self) -> None:
        self._line = StatusLine(every_s=5.0)

    def show(self, progress: Progress) -> None:
        """Callback for the checks, after each result."""
        text = f"verify: {progress.group} ({progress.number + 1} of {progress.groups}), {progress.lines} lines so far"
        self._line.show(text, time.monotonic())

    def clear(self) -> None:
        """Erase the line."""
        self._line.clear()
