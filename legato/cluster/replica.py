"""A replica: one process with the engines, which serves the ASGI application of `legato serve` behind Serve's proxy.

It owns the engines and the application for its life. Admission stays in the engine: a request without a free slot
waits in its queue, or is refused with 429 and `Retry-After`.
"""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import ray
from fastapi import FastAPI
from ray import serve

import legato
from legato.cluster.load import SLOTS_METRIC, STREAMS_METRIC
from legato.cluster.settings import ReplicaSettings
from legato.errors import StateError
from legato.server.app import create_app
from legato.server.state import ServerState

log = logging.getLogger("legato.cluster")

_POLL_S = 0.1


class Replica:
    """The class that Serve deploys, with `serve.ingress`."""

    def __init__(self, settings: ReplicaSettings | dict[str, Any]) -> None:
        self._settings = settings if isinstance(settings, ReplicaSettings) else ReplicaSettings.from_arguments(settings)
        self.name = serve.get_replica_context().replica_id.unique_id.lower()
        self._engines = {
            model.model_id: legato.load(
                model.model,
                revision=model.revision,
                device=model.device,
                dtype=model.dtype,
                codec_dtype=model.codec_dtype,
                quant=model.quant,
                config=self._settings.engine,
            )
            for model in self._settings.models
        }
        config = replace(
            self._settings.server, model_id=self._settings.models[0].model_id, replica=self.name, watchdog_s=0.0
        )
        self._app = create_app(self._engines, config)
        self._app.router.lifespan_context = self._lifespan(self._app.router.lifespan_context)
        self._stopping = stop_flag()
        gc.collect()
        gc.freeze()  # see `legato.cli.serve`: a collection of all objects of the models would stop every thread

    def __serve_build_asgi_app__(self) -> FastAPI:
        """Called by `serve.ingress` after the constructor."""
        return self._app

    @property
    def _state(self) -> ServerState:
        state: ServerState = self._app.state.legato
        return state

    def check_health(self) -> None:
        """Called by Serve every few seconds; it restarts a replica that raises repeatedly."""
        fault = self._state.engine_fault
        if fault is not None:
            raise StateError(f"replica {self.name}: {fault}")

    def record_routing_stats(self) -> dict[str, Any]:
        """The load for the router."""
        return {"streams": self._streams(), "slots": self._slots}

    def record_autoscaling_stats(self) -> dict[str, float]:
        """Streams that speak or wait. Idle sockets are connections to Serve, but no load."""
        return {STREAMS_METRIC: float(self._streams()), SLOTS_METRIC: float(self._slots)}

    def __del__(self) -> None:
        """Called by Serve after the last request."""
        for tts in getattr(self, "_engines", {}).values():
            tts.close()

    @property
    def _slots(self) -> int:
        return self._settings.engine.max_num_seqs * len(self._engines)

    def _streams(self) -> int:
        return sum(tts.stats().streams_open for tts in self._engines.values())

    def _lifespan(self, inner: Callable[[FastAPI], Any]) -> Callable[[FastAPI], Any]:
        """The lifespan of the application, with a task that starts its shutdown when Serve stops the replica."""

        @asynccontextmanager
        async def lifespan(app: FastAPI) -> AsyncIterator[Any]:
            async with inner(app) as state:
                waiting = asyncio.create_task(self._drain_when_stopped())
                try:
                    yield state
                finally:
                    waiting.cancel()
                    await asyncio.wait({waiting})

        return lifespan

    async def _drain_when_stopped(self) -> None:
        """Serve waits for all connections, idle sockets included, and tells nobody. The drain closes idle ones."""
        while not self._stopping():
            await asyncio.sleep(_POLL_S)
        log.info("replica %s: finishing its streams", self.name)
        await self._state.drain.run(self._settings.server.drain_s)
        if self._state.drain.cut:
            log.warning("replica %s: %d streams were cut after drain_s", self.name, self._state.drain.cut)


def stop_flag() -> Callable[[], bool]:
    """A function that returns whether Serve has begun to stop this replica.

    Serve has no hook for this: the destructor runs after the last request. The flag is an attribute of its replica
    actor, in this process. `StateError` if this version of Ray does not have it.
    """
    worker = ray._private.worker.global_worker
    actor = worker.actors.get(worker.actor_id)
    serving: Any = getattr(actor, "_replica_impl", None)
    if not hasattr(serving, "_shutting_down"):
        raise StateError(
            f"Ray {ray.__version__} does not tell a replica when it is stopped: install a version that "
            "docs/cluster.md lists as tested"
        )
    return lambda: bool(serving._shutting_down)
