"""`legato cluster serve`: start or join a Ray cluster and serve until stopped.

Sets the signal handlers of the process; everything else is in `legato.cluster`.
"""

from __future__ import annotations

import logging
import signal
import threading

import click

from legato.cli.cluster_options import ClusterOptions, cluster_options, require_ray
from legato.cli.terminal import note

EPILOG = """\b
Examples:
  legato cluster serve --replicas 2
  legato cluster serve --replicas 2 --max-replicas 8 --max-num-seqs 4 --threads 4
  legato cluster serve --address auto --host 0.0.0.0 -m Qwen/Qwen3-TTS-12Hz-0.6B-Base --voices /shared/voices

Without --threads, the CPUs of this machine are divided among the replicas. Give --threads if nodes differ. All replicas
must see the folder of --voices, for example over a network file system.

SIGTERM and Ctrl-C stop the replicas, which finish their streams first (--drain-s).
"""


@click.command(epilog=EPILOG, short_help="Start or join a Ray cluster and serve.")
@click.option(
    "--address",
    metavar="ADDRESS",
    help="Address of a running Ray cluster, or auto to find it.  [default: start one on this machine]",
)
@cluster_options
def serve(cluster: ClusterOptions, address: str | None) -> int:
    """Serve with several replicas, each in its own process, until stopped."""
    require_ray()
    from legato.cluster.application import Scale
    from legato.cluster.serve import ClusterAddress, serve_cluster

    for name in ("ray", "ray.serve"):
        logging.getLogger(name).setLevel(logging.WARNING)
    stopped = threading.Event()

    def handle_signals() -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: stopped.set())

    handle_signals()
    server = cluster.server
    host = f"[{server.host}]" if ":" in server.host else server.host
    settings = cluster.settings
    where = ClusterAddress(
        host=server.host,
        port=server.port,
        address=address,
        ssl_certfile=server.ssl_certfile,
        ssl_keyfile=server.ssl_keyfile,
    )
    scheme = "https" if server.ssl_certfile else "http"
    threads = "1 thread" if settings.threads == 1 else f"{settings.threads} threads"
    note(f"starting {cluster.replicas} replicas ({threads}, {settings.engine.max_num_seqs} streams each)")
    serve_cluster(
        settings,
        Scale(cluster.replicas, cluster.max_replicas),
        where,
        stop=stopped.is_set,
        on_connected=handle_signals,
        on_ready=lambda: note(f"listening on {scheme}://{host}:{server.port}; Ctrl-C stops"),
    )
    return 0
