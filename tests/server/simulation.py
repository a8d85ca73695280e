"""A server in simulated time: real sessions, protocols, bridge, scheduler and slots, on an event loop that never waits.

The loop's clock jumps to the next timer when nothing is ready, so minutes of a protocol take milliseconds, and a client
that would wait forever is a `DeadlockError`. The engine core is the real one. Its model computes nothing: the frames
are zeros, and `Faults` decides which streams fail. A `Simulation` belongs to one test case.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import itertools
import json
import math
import selectors
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, ParamSpec, TypeVar
from unittest import mock

import numpy as np
import numpy.typing as npt
import torch
from starlette.websockets import WebSocketState

from legato.api import Legato
from legato.backends.select import load_backend
from legato.config.engine import EngineConfig
from legato.config.server import ServerConfig
from legato.engine.assembly import assemble, new_stream
from legato.engine.codec_runner import Window
from legato.engine.handle import StreamHandle
from legato.engine.heartbeat import EngineHealth, Heartbeat
from legato.engine.request import SpeechRequest
from legato.engine.sequence import Sequence as TalkerSequence
from legato.engine.stats import EngineSnapshot, PoolUse
from legato.engine.stream import Command, StreamEvent, StreamRequest, Submit
from legato.errors import GenerationError, QueueFullError
from legato.server.app import create_app
from legato.server.bridge import Bridge, Pool
from legato.server.session_runner import SessionRunner
from legato.server.state import ServerState
from legato.server.websocket import ProtocolFactory, SocketSender, _run
from legato.session.playback import PlaybackLimits
from legato.types import Frame, StreamId

P = ParamSpec("P")
T = TypeVar("T")


class DeadlockError(AssertionError):
    """All tasks wait for each other: nothing is ready and there is no timer."""


class _JumpingSelector(selectors.DefaultSelector):
    """Advances the loop's clock instead of waiting."""

    now_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready: list[tuple[selectors.SelectorKey, int]] = super().select(0)
        if not ready and timeout is None:
            raise DeadlockError("all tasks wait for each other")
        if not ready and timeout:
            self.now_s += timeout
        return ready


class SimulatedLoop(asyncio.SelectorEventLoop):
    """An event loop in simulated time."""

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now_s


class SimulatedEngine:
    """The engine core, stepped by a task of the loop. A step takes `step_s`."""

    def __init__(
        self, tts: Legato, config: EngineConfig, loop: SimulatedLoop, faults: Faults, *, step_s: float
    ) -> None:
        self.config = config
        self._front_end = tts._front_end
        self._loop = loop
        self._step_s = step_s
        self._commands: list[Command] = []
        self._wake = asyncio.Event()
        self._ids = itertools.count()
        self._sequence_ids = itertools.count()
        self.open: set[StreamId] = set()
        self.parts = assemble(tts.backend, config, loop.time, poll_commands=self._take)
        faults.install(self.parts.runner)
        frame_samples = self.parts.codec.backend.decoder.frame_samples

        def decode(windows: Sequence[Window]) -> list[npt.NDArray[np.float32]]:
            return [np.full(len(window.frames) * frame_samples, faults.level, np.float32) for window in windows]

        self.parts.codec._decode = decode  # type: ignore[method-assign]

    def submit(self, request: StreamRequest, deliver: Callable[[StreamEvent], None] | None = None) -> StreamHandle:
        """As `Engine.submit`."""
        assert deliver is not None
        if len(self.open) >= self.config.max_num_seqs + self.config.max_queue:
            raise QueueFullError("the queue of the simulated engine is full")
        stream_id = StreamId(next(self._ids))

        def on_event(event: StreamEvent) -> None:
            if isinstance(event, Exception) or event.last:
                self.open.discard(stream_id)
            deliver(event)

        stream = new_stream(stream_id, request, self._front_end, on_event, lambda: next(self._sequence_ids))
        self.open.add(stream_id)
        self._put(Submit(stream, self._loop.time()))
        return StreamHandle(stream, None, self._put)

    def stats(self) -> EngineSnapshot:
        """As `Engine.stats`."""
        kv_pool, codec_pool = self.parts.kv_pool, self.parts.codec_pool
        return self.parts.stats.snapshot(
            streams_open=len(self.open),
            streams_parked=sum(stream.parked_history is not None for stream in self.parts.registry.streams()),
            talker_slots=PoolUse(self.config.kv_slots, kv_pool.free),
            codec_slots=PoolUse(self.config.max_num_seqs, codec_pool.free),
        )

    def health(self) -> EngineHealth:
        """Always healthy."""
        return Heartbeat(self._loop.time).health()

    async def run(self) -> None:
        """Step while there is work; wait for commands otherwise."""
        while True:
            with torch.inference_mode():
                busy = self.parts.core.step(self._take())
            self._wake.clear()
            if not busy and not self._commands:
                await self._next_work()
            await asyncio.sleep(self._step_s)

    async def _next_work(self) -> None:
        wake_in_s = self.parts.core.wake_in_s
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._wake.wait(), None if math.isinf(wake_in_s) else wake_in_s)

    def _put(self, command: Command) -> None:
        self._commands.append(command)
        self._wake.set()

    def _take(self) -> list[Command]:
        commands, self._commands = self._commands, []
        return commands


@dataclass
class Faults:
    """Replaces the model. `failing`: (seed of a request, frame) at which its stream fails. `level`: of all samples.

    The model never ends by itself.
    """

    failing: set[tuple[int, int]] = field(default_factory=set)
    level: float = 0.1

    def install(self, runner: Any) -> None:
        """Make `runner` compute nothing."""
        Q = runner.config.talker.num_codebooks
        hidden = torch.zeros(1)

        def code(frame: int) -> int:  # no loops, which the watchdog would end
            return Random(frame).randrange(32)

        def prefill(slices: Sequence[tuple[TalkerSequence, int, int]]) -> list[TalkerSequence]:
            for sequence, start, length in slices:
                sequence.slot.computed_positions = start + length
            return [each for each, _, _ in slices if each.slot.computed_positions == len(each.slot.plan.rows)]

        def step(sequences: Sequence[TalkerSequence]) -> None:
            for sequence in sequences:
                sequence.slot.computed_positions += 1
                sequence.slot.pending_frame = None
                runner._device_state[sequence.id].hidden = hidden

        def sample(sequences: Sequence[TalkerSequence]) -> list[int | GenerationError]:
            return [
                GenerationError("injected") if (each.seed, each.frames) in self.failing else code(each.frames)
                for each in sequences
            ]

        def predict(sequences: Sequence[TalkerSequence]) -> list[Frame]:
            runner.frames_sampled += len(sequences)
            return [(code(each.frames), *[0] * (Q - 1)) for each in sequences]

        runner.prefill, runner.step = prefill, step
        runner.sample_first_codes, runner.predict_frames = sample, predict


class SimulatedBridge(Bridge):
    """Runs blocking work on the loop. `delays_s`: how long the first jobs take; the others take no time."""

    delays_s: list[float]

    def _submit(self, pool: Pool, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:  # noqa: ARG002
        job: Future[T] = Future()

        def run() -> None:
            if job.set_running_or_notify_cancel():
                try:
                    job.set_result(work(*args, **kwargs))
                except BaseException as error:  # boundary: the caller gets it from the future
                    job.set_exception(error)

        delay_s = self.delays_s.pop(0) if self.delays_s else 0.0
        asyncio.get_running_loop().call_later(delay_s, run)
        return job


class SimulatedSocket:
    """The server's side of a WebSocket. `read_s`: how long the client takes to read a message."""

    def __init__(self, *, read_s: float = 0.0) -> None:
        self.application_state = WebSocketState.CONNECTED
        self.sent: list[dict[str, Any]] = []
        self.code = 0
        self._read_s = read_s
        self._incoming: asyncio.Queue[dict[str, object]] = asyncio.Queue()

    def put(self, message: dict[str, object]) -> None:
        """The client sends a message."""
        self._incoming.put_nowait({"type": "websocket.receive", "text": json.dumps(message)})

    def leave(self) -> None:
        """The client disconnects."""
        self._incoming.put_nowait({"type": "websocket.disconnect"})

    async def receive(self) -> dict[str, object]:
        return await self._incoming.get()

    async def send_text(self, message: str) -> None:
        await asyncio.sleep(self._read_s)
        self.sent.append(json.loads(message))

    async def send_bytes(self, data: bytes) -> None:
        await asyncio.sleep(self._read_s)
        self.sent.append({"type": "(audio)", "bytes": len(data)})

    async def close(self, code: int, reason: str) -> None:
        self.application_state = WebSocketState.DISCONNECTED
        self.code = code
        self.sent.append({"type": "(close)", "code": code, "reason": reason})

    def of(self, *kinds: str) -> list[dict[str, Any]]:
        """The messages of these types that were sent."""
        return [message for message in self.sent if message["type"] in kinds]


class Simulation:
    """One server."""

    def __init__(
        self,
        checkpoint: Path,
        *,
        engine: EngineConfig | None = None,
        server: ServerConfig | None = None,
        faults: Faults | None = None,
        step_s: float = 0.02,
        delays_s: Sequence[float] = (),
    ) -> None:
        self.loop = SimulatedLoop()
        tts = _legato(checkpoint)
        config = engine or EngineConfig(max_num_seqs=1, max_queue=4, max_seq_len=256)
        self.engine = SimulatedEngine(tts, config, self.loop, faults or Faults(), step_s=step_s)
        tts.config = config
        tts._engine = self.engine  # type: ignore[assignment]
        state = create_app(tts, server or ServerConfig(model_id="tiny", warm_up=False)).state.legato
        assert isinstance(state, ServerState)
        self.state = state
        state.bridge.close()
        bridge = SimulatedBridge(tts)
        bridge.delays_s = list(delays_s)
        state.bridge = bridge
        state.readiness.warm = True
        self._connections: list[asyncio.Task[None]] = []

    def run(self, script: Coroutine[None, None, T], *, limit_s: float = 600.0) -> T:
        """Run a test script beside the engine, for at most `limit_s` of simulated time."""

        async def main() -> T:
            engine = asyncio.create_task(self.engine.run())
            try:
                return await asyncio.wait_for(script, limit_s)
            finally:
                for task in (engine, *self._connections):
                    task.cancel()
                await asyncio.gather(engine, *self._connections, return_exceptions=True)

        try:
            return self.loop.run_until_complete(main())
        finally:
            self.state.bridge.close()
            self.loop.close()

    def connect(self, protocol: ProtocolFactory, *, read_s: float = 0.0) -> tuple[SimulatedSocket, asyncio.Task[None]]:
        """A client of a WebSocket protocol, and the task that ends when its socket is closed."""
        socket = SimulatedSocket(read_s=read_s)
        task = asyncio.create_task(self._serve(socket, protocol))
        self._connections.append(task)
        return socket, task

    async def _serve(self, socket: Any, protocol: ProtocolFactory) -> None:
        codec = self.state.tts.model.config.codec
        limits = PlaybackLimits(sample_rate_hz=codec.sample_rate_hz, frame_samples=codec.frame_samples)
        sender = SocketSender(socket, self.state.config.stall_s)
        async with self.session("simulated", limits) as session:
            with self.state.drain.track(lambda: not session.idle):
                await _run(socket, self.state, sender, session, protocol(self.state, sender, session))

    def session(self, route: str, limits: PlaybackLimits) -> SessionRunner:
        """A session in simulated time."""
        return SessionRunner(self.state, route, SpeechRequest(), limits, clock=self.loop.time)


_loaded: dict[Path, Legato] = {}


def _legato(checkpoint: Path) -> Legato:
    """A `Legato` without an engine. Models and tokenizers are loaded once."""
    if checkpoint not in _loaded:
        with mock.patch("legato.api.Engine"):
            _loaded[checkpoint] = Legato(load_backend(checkpoint), EngineConfig())
    return copy.copy(_loaded[checkpoint])
