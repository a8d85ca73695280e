"""`legato bench`: the group of benchmark commands. Each command is a module of its own.

Benchmarks measure speed and memory only; correctness is checked by `legato verify`.
"""

from __future__ import annotations

import click

from legato.cli.main import LazyGroup

SUBCOMMANDS = ("latency", "load", "batch", "steps", "memory", "contention", "report", "compare")
"""In the order of `legato bench --help`. Command NAME is the function NAME in the module `legato.cli.bench_NAME`."""

EPILOG = """\b
Examples:
  legato bench latency                                     time to first audio (TTFA), stage by stage
  legato bench load --concurrency 1,3,6                    latency and throughput with concurrent clients
  legato bench batch                                       throughput by batch size
  legato bench steps                                       step times against this machine's limits
  legato bench memory                                      memory with all slots in use
  legato bench contention                                  RTF while other processes keep cores busy
  legato bench latency --records a.jsonl --html a.html     save all records, and an HTML report
  legato bench compare a.jsonl b.jsonl                     the same requests before and after a change

\b
Every command prints tables and accepts
  --records FILE   one JSON object per request, with all metrics and metadata
  --json FILE      summaries with full precision
  --html FILE      a self-contained page with tables and plots

Measure on an idle machine. Benchmarks do not pass or fail; `legato verify` checks correctness.
"""


class BenchGroup(LazyGroup):
    """The benchmark commands, imported on demand."""

    names: tuple[str, ...] = SUBCOMMANDS
    stem = "legato.cli.bench_"


@click.group(cls=BenchGroup, short_help="Measure speed and memory.", epilog=EPILOG)
def bench() -> None:
    """Measure speed and memory."""
