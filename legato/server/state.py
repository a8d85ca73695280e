"""State shared by the routes of one application. `create_app` creates it; routes get it with `state_of`."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from starlette.requests import HTTPConnection

from legato.api import Legato
from legato.config.server import ServerConfig
from legato.engine.heartbeat import EngineHealth
from legato.server.bridge import Bridge
from legato.server.drain import STOPPING, Drain
from legato.server.errors import ApiError
from legato.server.metrics import Metrics
from legato.server.model_names import ModelNames
from legato.server.request_records import RequestRecords
from legato.server.voices import VoiceFolder


@dataclass(slots=True)
class Readiness:
    """Whether the server accepts new requests: after warm-up, while the engine works, and until shutdown begins."""

    health: Callable[[], EngineHealth]
    step_s: float
    """Longest healthy engine step."""
    warm: bool = False
    warm_up_failed: bool = False
    draining: bool = False

    @property
    def ready(self) -> bool:
        return self.status == "ready"

    @property
    def status(self) -> str:
        """ "ready", or why new requests are refused."""
        if self.draining:
            return "stopping"
        return self.engine_fault or ("ready" if self.warm else "warming up")

    @property
    def engine_fault(self) -> str | None:
        """Why the engine is unhealthy. A long step is normal during warm-up, which may compile kernels."""
        if self.warm_up_failed:
            return "warm-up failed"
        return self.health().fault(self.step_s if self.warm else math.inf)


@dataclass(slots=True)
class ServerState:
    """The components of one server; all but `readiness` and `wyoming_port` stay the same while it runs."""

    tts: Legato
    config: ServerConfig
    bridge: Bridge
    voices: VoiceFolder
    names: ModelNames
    metrics: Metrics
    records: RequestRecords
    readiness: Readiness
    drain: Drain = field(default_factory=Drain)
    wyoming_port: int | None = None
    """The port on which Wyoming listens, once it does."""

    def check_ready(self) -> None:
        """`ApiError` 503 unless new work is accepted."""
        if self.readiness.ready:
            return
        status = STOPPING if self.readiness.draining else f"the server is not ready: {self.readiness.status}"
        raise ApiError(503, "not_ready", f"{status}; retry later", headers={"Retry-After": "2"})


def state_of(connection: HTTPConnection) -> ServerState:
    """The state of the application behind a request or WebSocket."""
    state = connection.app.state.legato
    assert isinstance(state, ServerState)
    return state
