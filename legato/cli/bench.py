"""`legato bench`: how fast, on this machine, with these weights. The group alone; each command has a file of its own.

Nothing under it says whether anything is right: that is `legato verify`, and neither prints the other's figures.
"""

from __future__ import annotations

import click

from legato.cli.main import LazyGroup

SUBCOMMANDS = ("batch",)
"""In the order of `legato bench --help`; each is the module `legato.cli.bench_NAME` with a command called NAME."""

EPILOG = """\b
Examples:
  legato bench batch                               the voice in this package, batches 1, 2, 4, 8

Figures are worth what the machine did beside: let it be idle.
"""


class BenchGroup(LazyGroup):
    """The measurements, each loaded when it is asked for."""

    names: tuple[str, ...] = SUBCOMMANDS
    stem = "legato.cli.bench_"


@click.group(cls=BenchGroup, short_help="Measure speed.", epilog=EPILOG)
def bench() -> None:
    """Measure speed and memory."""
