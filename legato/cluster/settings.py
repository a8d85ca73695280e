"""Settings of a cluster: models, engine, server, and resources of one replica. Plain values, without Ray or torch.

They travel to the replicas as they are, or as the JSON arguments of a Serve configuration file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, Field, asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from legato.config.engine import EngineConfig
from legato.config.environment import api_key_from_environment
from legato.config.server import ServerConfig
from legato.errors import ConfigError, InputError

_SECRETS = ("api_key",)
"""Settings that are not written to files; replicas read them from their environment."""
_PROXY = ("host", "port", "ssl_certfile", "ssl_keyfile", "wyoming_port", "wyoming_host")
"""Settings of the server's own listener. In a cluster, Serve's proxy listens."""


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """One model of every replica: its id in requests, and the arguments of `legato.load`."""

    model: str = "embedded"
    id: str = ""
    """The id in requests; "" means `model`."""
    revision: str | None = None
    device: str = "cpu"
    dtype: str = "auto"
    codec_dtype: str = "auto"
    quant: str | None = None

    @property
    def model_id(self) -> str:
        return self.id or self.model


@dataclass(frozen=True, slots=True)
class ReplicaSettings:
    """Everything that a replica needs to start.

    `threads`: CPU threads of one replica, which Ray reserves as its CPUs. `gpus`: GPUs of one replica. `drain_s`: time
    for its streams to finish when it is stopped.
    """

    models: tuple[ModelSettings, ...] = (ModelSettings(),)
    engine: EngineConfig = field(default_factory=EngineConfig)
    server: ServerConfig = field(default_factory=ServerConfig)
    threads: int = 1
    gpus: float = 0.0

    def __post_init__(self) -> None:
        if not self.models:
            raise InputError("a replica needs at least one model", field="models")
        if self.threads < 1:
            raise InputError(f"threads must be at least 1, not {self.threads}", field="threads")
        ids = [model.model_id for model in self.models]
        if len(set(ids)) < len(ids):
            raise InputError(f"several models have the same id: {', '.join(ids)}", field="models")
        for name in _PROXY:
            if getattr(self.server, name) != _default(name):
                raise InputError(
                    f"{name} has no effect in a replica: Serve's proxy listens for all replicas", field=name
                )

    def to_arguments(self) -> dict[str, Any]:
        """The settings that differ from their defaults, as JSON values. Without secrets."""
        arguments: dict[str, Any] = {"models": [_changed(model) for model in self.models], "threads": self.threads}
        if self.gpus:
            arguments["gpus"] = self.gpus
        for name, value in (("engine", _changed(self.engine)), ("server", _changed(self.server))):
            arguments[name] = {key: each for key, each in value.items() if key not in _SECRETS}
        # The number of KV slots follows from the number of streams, unless it was set to another value.
        if self.engine.kv_slots == self.engine.max_num_seqs + 1:
            arguments["engine"].pop("kv_slots", None)
        return {key: value for key, value in arguments.items() if value not in ({}, [])}

    @staticmethod
    def from_arguments(arguments: Mapping[str, Any]) -> ReplicaSettings:
        """The inverse of `to_arguments`. `ConfigError` names an unknown or invalid setting.

        The API key is read from the environment of the process, where it is not visible in files or in the dashboard.
        """
        allowed = {"models", "engine", "server", "threads", "gpus"}
        _reject_unknown(arguments, allowed, "")
        server = dict(arguments.get("server", {}))
        server.setdefault("api_key", api_key_from_environment())
        return ReplicaSettings(
            models=tuple(_build(ModelSettings, each, "models.") for each in arguments.get("models", [{}])),
            engine=_build(EngineConfig, arguments.get("engine", {}), "engine."),
            server=_build(ServerConfig, server, "server."),
            threads=arguments.get("threads", 1),
            gpus=float(arguments.get("gpus", 0.0)),
        )


def _default(name: str) -> object:
    return getattr(ServerConfig(), name)


def _changed(value: Any) -> dict[str, Any]:
    """The fields of a dataclass that differ from their defaults, as JSON values."""
    current = asdict(value)
    defaults = {each.name: _default_of(each) for each in fields(value)}
    return {name: _plain(each) for name, each in current.items() if each != defaults[name]}


def _default_of(setting: Field[Any]) -> object:
    if setting.default_factory is not MISSING:
        return setting.default_factory()
    return setting.default


def _plain(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    return value


def _build(kind: type[Any], given: object, prefix: str) -> Any:
    """A dataclass from JSON values; lists become tuples and names of files become paths."""
    if not isinstance(given, Mapping):
        raise ConfigError(f"{prefix.rstrip('.')} must be an object, not {type(given).__name__}")
    known = {each.name: each for each in fields(kind)}
    _reject_unknown(given, set(known), prefix)
    values = {name: _typed(str(known[name].type), value) for name, value in given.items()}
    try:
        return kind(**values)
    except (TypeError, InputError) as error:
        raise ConfigError(f"invalid {prefix.rstrip('.')} settings: {error}") from error


def _typed(annotation: str, value: object) -> object:
    if isinstance(value, str) and annotation.startswith("Path"):
        return Path(value)
    if isinstance(value, list):
        return tuple(value)
    if isinstance(value, Mapping):
        return {key: tuple(each) if isinstance(each, list) else each for key, each in value.items()}
    return value


def _reject_unknown(given: Mapping[str, Any], known: set[str], prefix: str) -> None:
    for name in given:
        if name not in known:
            raise ConfigError(f"unknown setting {prefix}{name}: known are {', '.join(sorted(known))}")
