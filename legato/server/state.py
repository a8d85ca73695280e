"""What the routes of one application share. Made once by `create_app`, and found through the application's state."""

from __future__ import annotations

from dataclasses import dataclass, field

from starlette.requests import HTTPConnection

from legato.api import Legato
from legato.config.server import ServerConfig
from legato.server.bridge import Bridge
from legato.server.metrics import Metrics
from legato.server.names import Names
from legato.server.records import RequestRecords
from legato.server.voices import VoiceFolder


@dataclass(slots=True)
class Readiness:
    """Whether new speech is welcome: after warm-up, until the server is told to stop."""

    warm: bool = False
    draining: bool = False

    @property
    def ready(self) -> bool:
        return self.warm and not self.draining


@dataclass(frozen=True, slots=True)
class ServerState:
    """The parts of one server."""

    tts: Legato
    config: ServerConfig
    bridge: Bridge
    voices: VoiceFolder
    names: Names
    metrics: Metrics
    records: RequestRecords
    readiness: Readiness = field(default_factory=Readiness)
    wyoming_ports: list[int] = field(default_factory=list)
    """Where Wyoming listens, once it does."""


def state_of(connection: HTTPConnection) -> ServerState:
    """The state of the application that serves a request or a WebSocket."""
    state = connection.app.state.legato
    assert isinstance(state, ServerState)
    return state
