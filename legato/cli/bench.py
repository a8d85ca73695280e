"""`legato bench`: how fast, on this machine, with these weights. The group alone; each command has a file of its own.

Nothing under it says whether anything is right: that is `legato verify`, and neither prints the other's figures.
"""

from __future__ import annotations

import click

from legato.cli.main import LazyGroup

SUBCOMMANDS = ("latency", "load", "batch", "steps", "memory", "report", "compare")
"""In the order of `legato bench --help`; each is the module `legato.cli.bench_NAME` with a command called NAME."""

EPILOG = """\b
Examples:
  legato bench latency                                     where the time until the first sound goes
  legato bench load --at-once 1,3,6                        what many clients at once get
  legato bench batch                                       what a larger batch brings
  legato bench steps                                       one step beside the limits of this machine
  legato bench memory                                      what all slots in use take
  legato bench latency --records a.jsonl --html a.html     keep every request, and a page to look at
  legato bench compare a.jsonl b.jsonl                     the same requests before and after a change

\b
Every command prints tables and takes
  --records FILE   one JSON object for each request, with all that the figures depend on: keep these
  --json FILE      summaries with full digits
  --html FILE      one page with tables and plots, which needs nothing beside it

Figures are worth what the machine did beside: let it be idle. Nothing here passes or fails; `legato verify` does that.
"""


class BenchGroup(LazyGroup):
    """The measurements, each loaded when it is asked for."""

    names: tuple[str, ...] = SUBCOMMANDS
    stem = "legato.cli.bench_"


@click.group(cls=BenchGroup, short_help="Measure speed.", epilog=EPILOG)
def bench() -> None:
    """Measure speed and memory."""
