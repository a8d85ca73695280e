"""Options shared by `legato cluster serve` and `legato cluster config`: replicas, and those of `legato serve`.

Holds no state and imports neither Ray nor torch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import wraps
from importlib.util import find_spec
from typing import Any

import click

from legato.cli.model_options import (
    ModelOptions,
    cuda_graphs_option,
    deterministic_option,
    max_num_seqs_option,
    max_queue_option,
    max_seq_len_option,
    models_options,
    yield_option,
)
from legato.cli.options import Decorator, add_options
from legato.cli.serve import require_server
from legato.cli.serve_options import ServeOptions, serve_options
from legato.cluster.settings import ModelSettings, ReplicaSettings
from legato.config.cpus import default_threads
from legato.config.engine import EngineConfig
from legato.config.server import ServerConfig
from legato.errors import UnsupportedError

_OPTIONS = (
    click.option(
        "--replicas",
        default=2,
        show_default=True,
        type=click.IntRange(1),
        help="Number of replicas, each with its own engine; with --max-replicas, the smallest number.",
    ),
    click.option(
        "--max-replicas",
        type=click.IntRange(1),
        help="Add replicas while streams need them, up to this number.  [default: --replicas]",
    ),
)


@dataclass(frozen=True, slots=True)
class ClusterOptions:
    """Values of the options. `host`, `port` and TLS files are those of the proxies."""

    settings: ReplicaSettings
    replicas: int
    max_replicas: int | None
    server: ServerConfig


def require_ray() -> None:
    """Raise `UnsupportedError` with the remedy if Ray is not installed."""
    require_server("legato cluster")
    if find_spec("ray") is None:
        raise UnsupportedError('legato cluster requires Ray: pip install ".[server,cluster]"')


def cluster_options(command: Callable[..., object]) -> Callable[..., object]:
    """Add the options; the command gets `cluster: ClusterOptions`."""

    @wraps(command)
    def call(
        *,
        options: ServeOptions,
        models: list[ModelOptions],
        replicas: int,
        max_replicas: int | None,
        **rest: Any,
    ) -> Any:
        engine_names = ("max_num_seqs", "max_queue", "yield_s", "max_seq_len", "deterministic", "cuda_graphs")
        engine = EngineConfig(**{name: rest.pop(name) for name in engine_names})
        return command(cluster=_combine(options, models, engine, replicas, max_replicas), **rest)

    decorators: tuple[Decorator, ...] = (
        lambda each: add_options(each, _OPTIONS),
        serve_options,
        max_num_seqs_option(1, help_text="Maximum number of streams that one replica generates at the same time."),
        max_queue_option(64),
        yield_option,
        max_seq_len_option(2048),
        models_options,
        deterministic_option,
        cuda_graphs_option,
    )
    decorated: Callable[..., object] = call
    for decorate in reversed(decorators):
        decorated = decorate(decorated)
    return decorated


def _combine(
    options: ServeOptions,
    models: list[ModelOptions],
    engine: EngineConfig,
    replicas: int,
    max_replicas: int | None,
) -> ClusterOptions:
    ids = options.model_ids([model.model for model in models])
    server = options.config(ids[0])
    if server.wyoming_port is not None:
        raise click.UsageError("a cluster has no Wyoming port: run `legato serve --wyoming` beside it")
    if options.log_format != "text":
        raise click.UsageError("--log-format has no effect on replicas: Ray collects their logs")
    defaults = ServerConfig()
    listener = {name: getattr(defaults, name) for name in ("host", "port", "ssl_certfile", "ssl_keyfile", "model_id")}
    first = models[0]
    settings = ReplicaSettings(
        models=tuple(
            ModelSettings(
                model=model.model,
                id=model_id if model_id != model.model else "",
                revision=model.revision,
                device=model.device,
                dtype=model.dtype,
                codec_dtype=model.codec_dtype,
                quant=model.quant,
            )
            for model_id, model in zip(ids, models, strict=True)
        ),
        engine=engine,
        server=replace(server, wyoming_host=defaults.wyoming_host, **listener),
        threads=first.threads or max(1, default_threads() // replicas),
        gpus=1.0 if first.device.startswith("cuda") else 0.0,
    )
    return ClusterOptions(settings, replicas, max_replicas, server)
