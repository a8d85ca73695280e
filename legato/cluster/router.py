"""The request router: chooses a replica by the load that each reports, or by the id of the request asked about.

One router per proxy, owned by Serve. The decision itself is `load.rank_replicas`.
"""

from __future__ import annotations

import pickle
import random
import time
from typing import Any

from ray.serve._private.common import StreamingHTTPRequest
from ray.serve.request_router import FIFOMixin, PendingRequest, ReplicaID, ReplicaResult, RequestRouter, RunningReplica

from legato.cluster.load import InFlight, ReplicaLoad, owner_of, rank_replicas


class FreeSlotRouter(FIFOMixin, RequestRouter):  # type: ignore[misc]  # Ray's classes are untyped
    """Sends a request to the replica with the smallest share of its slots in use."""

    def initialize_state(self, **options: Any) -> None:  # noqa: ARG002 - part of Serve's interface
        """Called once by Serve."""
        self._rng = random.Random()
        self._in_flight = InFlight(time.monotonic)

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """Called by Serve for each request, and again if all of these replicas are full."""
        replicas = {_name(replica.replica_id): replica for replica in candidate_replicas}
        loads = {name: self._load(name, replica.routing_stats) for name, replica in replicas.items()}
        path = _path(pending_request)
        ranks = rank_replicas(loads, self._rng, owner=owner_of(path))
        if pending_request is not None and ranks and _is_speech(path):
            self._in_flight.choose(pending_request.metadata.request_id, ranks[0][0])
        return [[replicas[name] for name in rank] for rank in ranks]

    def on_request_routed(self, pending_request: PendingRequest, replica_id: ReplicaID, result: ReplicaResult) -> None:
        """Called by Serve when the request was sent."""
        if _is_speech(_path(pending_request)):
            name = _name(replica_id)
            self._in_flight.sent(pending_request.metadata.request_id, name)
            result.add_done_callback(lambda _: self._in_flight.done(name))

    def _load(self, name: str, stats: dict[str, Any]) -> ReplicaLoad | None:
        return self._in_flight.load(name, stats["streams"], stats["slots"]) if stats else None


def _name(replica_id: ReplicaID) -> str:
    return str(replica_id.unique_id).lower()


def _path(pending_request: PendingRequest | None) -> str:
    """The URL path of a request. The proxy has packed it in this process, for the way to the replica."""
    if pending_request is None or not pending_request.args or not isinstance(pending_request.args[0], bytes):
        return ""
    request = pickle.loads(pending_request.args[0])
    return str(request.asgi_scope["path"]) if isinstance(request, StreamingHTTPRequest) else ""


def _is_speech(path: str) -> bool:
    """Whether the request generates speech until its response ends. Sockets do not: they may be idle for hours."""
    return path in ("/v1/audio/speech", "/v1/audio/speech/batch")
