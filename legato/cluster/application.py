"""Build the Serve application: `legato.cluster.application:build` is the import path in configuration files.

Holds no state. Importing this module imports Ray, but neither torch nor a model; the replicas load those.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ray import serve
from ray.serve.config import AutoscalingConfig, AutoscalingContext, AutoscalingPolicy, RequestRouterConfig
from ray.serve.deployment import Application

from legato.cluster.load import (
    DOWNSCALE_DELAY_S,
    METRICS_PERIOD_S,
    METRICS_WINDOW_S,
    SLOTS_METRIC,
    STATS_PERIOD_S,
    STREAMS_METRIC,
    TARGET_USE,
    UPSCALE_DELAY_S,
    replicas_needed,
)
from legato.cluster.settings import ReplicaSettings
from legato.errors import ConfigError, InputError

MAX_ONGOING_REQUESTS = 10_000
"""Far above the number of slots: sockets are open for long, and the engine refuses what it cannot take."""
HEALTH_PERIOD_S = 2.0
SHUTDOWN_MARGIN_S = 10.0
"""Time after `drain_s` for farewell messages and for closing the engines."""


@dataclass(frozen=True, slots=True)
class Scale:
    """`replicas` at all times, or between `replicas` and `max_replicas`."""

    replicas: int = 2
    max_replicas: int | None = None

    def __post_init__(self) -> None:
        if self.replicas < 1:
            raise InputError(f"replicas must be at least 1, not {self.replicas}", field="replicas")
        if self.max_replicas is not None and self.max_replicas < self.replicas:
            raise InputError(
                f"max_replicas ({self.max_replicas}) must be at least replicas ({self.replicas})", field="max_replicas"
            )


def build(arguments: dict[str, Any]) -> Application:
    """The application for the `args` of a Serve configuration file: those of `ReplicaSettings`, and of `Scale`."""
    given = dict(arguments)
    scale_names = ("replicas", "max_replicas")
    scale = {name: given.pop(name) for name in scale_names if name in given}
    if any(not isinstance(value, int) for value in scale.values()):
        raise ConfigError("replicas and max_replicas must be whole numbers")
    return application(ReplicaSettings.from_arguments(given), Scale(**scale))


def application(settings: ReplicaSettings, scale: Scale) -> Application:
    """One deployment, with no hop between the proxy and the engine."""
    from legato.cluster.replica import Replica
    from legato.cluster.router import FreeSlotRouter

    resources: dict[str, Any] = {
        "num_cpus": settings.threads,
        "num_gpus": settings.gpus,
        # torch and the kernels take their number of threads from it: never all cores of the node.
        "runtime_env": {"env_vars": {"OMP_NUM_THREADS": str(settings.threads)}},
    }
    options: dict[str, Any] = {
        "name": "Replica",
        "ray_actor_options": resources,
        "max_ongoing_requests": MAX_ONGOING_REQUESTS,
        "health_check_period_s": HEALTH_PERIOD_S,
        "graceful_shutdown_wait_loop_s": 0.2,
        "graceful_shutdown_timeout_s": settings.server.drain_s + SHUTDOWN_MARGIN_S,
        "request_router_config": RequestRouterConfig(
            request_router_class=FreeSlotRouter, request_routing_stats_period_s=STATS_PERIOD_S
        ),
    }
    if scale.max_replicas is None:
        options["num_replicas"] = scale.replicas
    else:
        options["autoscaling_config"] = AutoscalingConfig(
            min_replicas=scale.replicas,
            max_replicas=scale.max_replicas,
            policy=AutoscalingPolicy(policy_function=scale_by_streams),
            metrics_interval_s=METRICS_PERIOD_S,
            look_back_period_s=METRICS_WINDOW_S,
            upscale_delay_s=UPSCALE_DELAY_S,
            downscale_delay_s=DOWNSCALE_DELAY_S,
        )
    bound: Application = serve.deployment(serve.ingress()(Replica)).options(**options).bind(settings)
    return bound


def scale_by_streams(context: AutoscalingContext) -> tuple[int, dict[str, Any]]:
    """The autoscaling policy: replicas for the streams that speak or wait. Serve applies limits and delays."""
    metrics = context.aggregated_metrics or {}
    streams, slots = metrics.get(STREAMS_METRIC, {}), metrics.get(SLOTS_METRIC, {})
    if not slots:
        return context.target_num_replicas, {}  # no replica has reported yet
    per_replica = round(sum(slots.values()) / len(slots))
    return replicas_needed(list(streams.values()), per_replica, target_use=TARGET_USE), {}
