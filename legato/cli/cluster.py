"""`legato cluster`: the group of commands that serve with several replicas on Ray Serve.

Holds no state; each command is a module of its own.
"""

from __future__ import annotations

import click

from legato.cli.main import LazyGroup

SUBCOMMANDS = ("serve", "config")
"""In the order of `legato cluster --help`. Command NAME is the function NAME in `legato.cli.cluster_NAME`."""

EPILOG = """\b
Examples:
  legato cluster serve --replicas 2                       two replicas on this machine
  legato cluster serve --address auto --replicas 8        on the nodes of a running Ray cluster
  legato cluster config --replicas 8 -o legato.yaml       a file for `serve deploy` and KubeRay

Needs: pip install ".[server,cluster]". docs/cluster.md is the guide.
"""


class ClusterGroup(LazyGroup):
    """The cluster commands, imported on demand."""

    names: tuple[str, ...] = SUBCOMMANDS
    stem = "legato.cli.cluster_"


@click.group(cls=ClusterGroup, short_help="Serve with several replicas, on one or many machines.", epilog=EPILOG)
def cluster() -> None:
    """Serve with several replicas, on one or many machines (Ray Serve)."""
