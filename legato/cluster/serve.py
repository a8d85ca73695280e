"""Start or join a Ray cluster and serve until a signal arrives. Ray's processes end with it if they were started here.

Deployed replicas belong to Serve. If the cluster existed before (`address`), the application is removed at the end, and
the cluster goes on.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import ray
from ray import serve
from ray.serve.schema import ApplicationStatus

from legato.cluster.application import Scale, application
from legato.cluster.proxy import CALLBACK, CALLBACK_VARIABLE
from legato.cluster.settings import ReplicaSettings
from legato.config.environment import set_default_variables
from legato.errors import LegatoError

APPLICATION = "legato"
_POLL_S = 0.5


@dataclass(frozen=True, slots=True)
class ClusterAddress:
    """Where to serve. `address`: an existing Ray cluster; None starts one on this machine.

    `host`, `port`, TLS files: of the proxies, one on each node with replicas. `cpus`: CPUs that a new cluster may use;
    None for all of this machine.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    address: str | None = None
    cpus: int | None = None
    ssl_certfile: Path | None = None
    ssl_keyfile: Path | None = None


def serve_cluster(
    settings: ReplicaSettings,
    scale: Scale,
    where: ClusterAddress,
    *,
    stop: Callable[[], bool],
    on_connected: Callable[[], None],
    on_ready: Callable[[], None],
) -> None:
    """Deploy, call `on_ready` when all replicas have started, and return after `stop` and the drain of the replicas.

    `on_connected` is called after Ray has set its own handler of SIGTERM, which aborts the process.
    """
    set_default_variables({"RAY_USAGE_STATS_ENABLED": "0", CALLBACK_VARIABLE: CALLBACK})
    _connect(where)
    on_connected()
    try:
        serve.start(
            proxy_location="EveryNode",
            http_options=_http_options(where),
            logging_config={"enable_access_log": False},
        )
        deployed = application(settings, scale)
        serve._run(deployed, _blocking=False, name=APPLICATION, route_prefix="/")
        if _wait_until_running(stop):
            on_ready()
        while not stop():
            time.sleep(_POLL_S)
    finally:
        serve.delete(APPLICATION)
        if where.address is None:
            serve.shutdown()
        ray.shutdown()


def _http_options(where: ClusterAddress) -> dict[str, object]:
    options: dict[str, object] = {"host": where.host, "port": where.port, "keep_alive_timeout_s": 5}
    if where.ssl_certfile is not None:
        options |= {
            "ssl_certfile": str(where.ssl_certfile),
            "ssl_keyfile": str(where.ssl_keyfile or where.ssl_certfile),
        }
    return options


def _connect(where: ClusterAddress) -> None:
    options = {"log_to_driver": False, "configure_logging": False}
    try:
        if where.address is not None:
            ray.init(address=where.address, **options)
        else:
            ray.init(num_cpus=where.cpus, include_dashboard=False, **options)
    except (ConnectionError, RuntimeError, ValueError) as error:
        place = where.address or "this machine"
        raise LegatoError(f"no Ray cluster on {place}: {str(error).splitlines()[0]}") from error


def _wait_until_running(stop: Callable[[], bool]) -> bool:
    """Wait until every replica has started. False if `stop` was first; `LegatoError` if the deployment failed."""
    while not stop():
        status = serve.status().applications.get(APPLICATION)
        if status is not None and status.status is ApplicationStatus.RUNNING:
            return True
        if status is not None and status.status in (ApplicationStatus.DEPLOY_FAILED, ApplicationStatus.UNHEALTHY):
            messages = [deployment.message for deployment in status.deployments.values() if deployment.message]
            raise LegatoError(f"the replicas do not start: {' '.join([status.message, *messages])[:2000]}")
        time.sleep(_POLL_S)
    return False
