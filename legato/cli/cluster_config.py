"""`legato cluster config`: write the configuration file for `serve deploy` and KubeRay.

Holds no state and does not import Ray, so that it works without it.
"""

from __future__ import annotations

from pathlib import Path

import click

from legato.cli.cluster_options import ClusterOptions, cluster_options
from legato.cli.terminal import note
from legato.config.environment import API_KEY_VARIABLE

EPILOG = """\b
Examples:
  legato cluster config --replicas 8 --max-num-seqs 4 --threads 4 -o legato.yaml
  serve deploy legato.yaml

The file has no API key. Set the environment variable on the nodes, or in the runtime environment of the application.
"""


@click.command(epilog=EPILOG, short_help="Write the Serve configuration file.")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False, allow_dash=True),
    default="-",
    help="File to write.  [default: standard output]",
)
@cluster_options
def config(cluster: ClusterOptions, output: Path) -> int:
    """Write the Serve configuration (YAML) with these options, for `serve deploy` or a RayService of KubeRay."""
    from legato.cluster.manifest import serve_config

    text = serve_config(
        cluster.settings,
        replicas=cluster.replicas,
        max_replicas=cluster.max_replicas,
        host=cluster.server.host,
        port=cluster.server.port,
    )
    if str(output) == "-":
        click.echo(text, nl=False)
    else:
        output.write_text(text, encoding="utf-8")
        note(f"wrote {output}")
    if cluster.settings.server.api_key:
        note(f"the API key is not in the file: set {API_KEY_VARIABLE} for the replicas")
    return 0
