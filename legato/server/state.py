"""State that routes use: the components that serve one model, and those that all models of the server share.

`create_app` creates one `ServerState` for each model. Routes get the state of the default model with `state_of`, and
the one of the model that a request names with `ServerState.for_model`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from starlette.requests import HTTPConnection

from legato.api import Legato
from legato.config.aliases import ANY_MODEL, undated_model
from legato.config.server import ServerConfig
from legato.engine.heartbeat import EngineHealth
from legato.server.bridge import Bridge
from legato.server.client_limits import ClientStreams
from legato.server.drain import STOPPING, Drain
from legato.server.errors import ApiError
from legato.server.metrics import Metrics
from legato.server.model_names import ModelNames
from legato.server.request_records import RequestRecords
from legato.server.voices import VoiceFolder


@dataclass(slots=True)
class Readiness:
    """Whether a model accepts new requests: after warm-up, while its engine works, and until shutdown begins."""

    health: Callable[[], EngineHealth]
    step_s: float
    """Longest healthy engine step."""
    drain: Drain
    warm: bool = False
    warm_up_failed: bool = False

    @property
    def ready(self) -> bool:
        return self.status == "ready"

    @property
    def status(self) -> str:
        """ "ready", or why new requests are refused."""
        if self.drain.requested:
            return "stopping"
        return self.engine_fault or ("ready" if self.warm else "warming up")

    @property
    def engine_fault(self) -> str | None:
        """Why the engine is unhealthy. A long step is normal during warm-up, which may compile kernels."""
        if self.warm_up_failed:
            return "warm-up failed"
        return self.health().unhealthy_reason(self.step_s if self.warm else math.inf)


@dataclass(slots=True)
class ServerState:
    """The components that serve one model; all but `readiness` and `wyoming_port` stay the same while the server runs.

    The models of a server share `voices`, `metrics`, `clients`, `records`, `drain` and `models`, and the settings other
    than the names of the model.
    """

    tts: Legato
    config: ServerConfig
    bridge: Bridge
    voices: VoiceFolder
    names: ModelNames
    metrics: Metrics
    clients: ClientStreams
    records: RequestRecords
    readiness: Readiness
    drain: Drain
    models: list[ServerState] = field(repr=False)
    """All models of the server, this one included. The first is the default."""
    wyoming_port: int | None = None
    """The port on which Wyoming listens, once it does."""

    def find_model(self, name: str) -> ServerState | None:
        """The state of a model by its id or an alias, also one of OpenAI's with a date; None if it does not exist."""
        for known in (name, undated_model(name), ANY_MODEL):
            found = next((state for state in self.models if known in state.names.models()), None)
            if found is not None:
                return found
        return None

    def for_model(self, name: str) -> ServerState:
        """The state of a model by its id or an alias; "" is the default. `ApiError` 404 if it does not exist."""
        found = self.find_model(name) if name else self.models[0]
        if found is not None:
            return found
        ids = ", ".join(repr(state.config.model_id) for state in self.models)
        aliases = ", ".join(alias for state in self.models for alias in state.names.models()[1:]) or "none"
        raise ApiError(
            404,
            "model_not_found",
            f"unknown model {name[:80]!r}: this server runs {ids} (aliases: {aliases}; --model-alias adds more)",
            param="model",
        )

    @property
    def status(self) -> str:
        """ "ready" if every model accepts new requests; otherwise why the first that does not refuses them."""
        return self._first_fault(lambda readiness: None if readiness.ready else readiness.status) or "ready"

    @property
    def engine_fault(self) -> str | None:
        """Why the engine of a model is unhealthy; None if all engines work."""
        return self._first_fault(lambda readiness: readiness.engine_fault)

    def check_ready(self) -> None:
        """`ApiError` 503 unless this model accepts new work."""
        if self.readiness.ready:
            return
        status = STOPPING if self.drain.requested else f"the server is not ready: {self.readiness.status}"
        raise ApiError(503, "not_ready", f"{status}; retry later", headers={"Retry-After": "2"})

    def check_accepting(self) -> None:
        """`ApiError` 503 if the server is shutting down."""
        if self.drain.requested:
            raise ApiError(503, "not_ready", f"{STOPPING}; retry later", headers={"Retry-After": "2"})

    def _first_fault(self, fault_of: Callable[[Readiness], str | None]) -> str | None:
        """The first fault of any model, with the model's id if there are several."""
        for state in self.models:
            fault = fault_of(state.readiness)
            if fault is not None:
                return fault if len(self.models) == 1 else f"{state.config.model_id}: {fault}"
        return None


def state_of(connection: HTTPConnection) -> ServerState:
    """The state of the default model, of the application behind a request or WebSocket."""
    state = connection.app.state.legato
    assert isinstance(state, ServerState)
    return state
