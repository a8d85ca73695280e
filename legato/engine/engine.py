"""The engine's face: streams are submitted from any thread, packets come out of a handle.

Owns the one thread that touches tensors, the pools and the loop, from construction until `close`. Knows no HTTP.
"""

from __future__ import annotations

import atexit
import itertools
import logging
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from legato.config.engine import EngineConfig
from legato.engine.assembly import assemble, new_stream
from legato.engine.commands import Cancel, Command, Drain, Submit
from legato.engine.frontend import FrontEnd
from legato.engine.handle import Mailbox, StreamHandle
from legato.engine.memory import memory_of
from legato.engine.stats import EngineSnapshot, PoolUse
from legato.engine.stream import StreamEvent, StreamRequest
from legato.errors import EngineClosedError, LegatoError, QueueFullError
from legato.flow import StreamId
from legato.models.load import LoadedModel
from legato.models.native.team import let_team_go

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Stop:
    """Ends the engine's thread: after the streams under way, or at once."""

    drain: bool


class Engine:
    """Continuous batching over one loaded model."""

    def __init__(
        self,
        model: LoadedModel,
        front_end: FrontEnd,
        config: EngineConfig,
        *,
        clock: Callable[[], float] = time.monotonic,
        poison: bool = False,
        settle: Callable[[], None] = lambda: None,
    ) -> None:
        self.model = model
        self.front_end = front_end
        self.config = config
        self._clock = clock
        self._commands: queue.SimpleQueue[Command | _Stop] = queue.SimpleQueue()
        self._stops: list[_Stop] = []
        self._stream_ids = itertools.count()
        sequence_ids = itertools.count()
        self._next_sequence_id = lambda: next(sequence_ids)
        self._open: set[StreamId] = set()
        self._lock = threading.Lock()
        self._closed = False
        works = assemble(model, config, clock, poison=poison, more=self._arrived, settle=settle)
        self.runner, self.kv_pool, self.codec_pool = works.runner, works.kv_pool, works.codec_pool
        self._loop, self._roster, self._stats = works.loop, works.roster, works.stats
        memory = memory_of(works.kv_pool.cache, works.codec_pool.slot_bytes, config)
        _log.info("%s; %d streams may wait", memory, config.queue)
        let_team_go()  # of the thread that loaded the model: from here on another one computes
        self._thread = threading.Thread(target=self._work, name="legato-engine", daemon=True)
        self._thread.start()
        atexit.register(self.close)  # a thread that computes while Python goes away takes the process down with it

    def submit(self, request: StreamRequest, deliver: Callable[[StreamEvent], None] | None = None) -> StreamHandle:
        """Start a stream without text; give it some with `append_text` and close it with `end_text`.

        With `deliver` the packets, and at most one error as the last event, go to that callable, in the engine's
        thread: it must not block, and if it raises, its own stream fails. Without, they are read from the handle.
        """
        received_s = self._clock()
        stream_id = StreamId(next(self._stream_ids))
        mailbox = Mailbox()
        receive = deliver or mailbox.put

        def sink(event: StreamEvent) -> None:
            if isinstance(event, LegatoError) or event.last:
                with self._lock:
                    self._open.discard(stream_id)
            receive(event)

        stream = new_stream(stream_id, request, self.front_end, sink, self._next_sequence_id)
        handle = StreamHandle(stream, () if deliver else (mailbox,), self._commands.put)
        with self._lock:
            if self._closed:
                raise EngineClosedError("the engine is closed")
            limit = self.config.streams + self.config.queue
            if len(self._open) >= limit:
                raise QueueFullError(f"{len(self._open)} streams speak or wait already, and the limit is {limit}")
            self._open.add(stream_id)
            self._commands.put(Submit(stream, received_s))
        return handle

    def stats(self) -> EngineSnapshot:
        """What the engine did so far, and what is in use now; from any thread."""
        kv, codec = self.kv_pool, self.codec_pool
        return self._stats.snapshot(
            streams_open=len(self._open),
            talker_slots=PoolUse(self.config.kv_slots, kv.free),
            codec_slots=PoolUse(self.config.streams, codec.free),
        )

    def close(self, *, drain: bool = False) -> None:
        """End the engine's thread: after the streams under way with `drain`, else at once; closing twice is fine.

        Draining speaks the text that has come and waits for nobody: text that comes later is dropped. A callable that
        closes the engine it is called by does not wait for the end.
        """
        with self._lock:
            self._closed = True
            self._commands.put(_Stop(drain))
        if threading.current_thread() is not self._thread:
            self._thread.join()
        atexit.unregister(self.close)

    # --- the engine's thread ------------------------------------------------------------------------------------------

    def _work(self) -> None:
        try:
            with torch.inference_mode():
                self._serve()
        finally:
            self._end_everybody()

    def _serve(self) -> None:
        busy = False
        while not (self._stops and not len(self._roster)):
            commands = self._arrived() if busy or self._stops else self._wait()
            busy = self._turn(commands)
            if self._stops:
                drain = all(stop.drain for stop in self._stops)
                ids = [stream.id for stream in self._roster.streams()]
                busy = self._turn([Drain(each) if drain else Cancel(each) for each in ids])

    def _turn(self, commands: list[Command]) -> bool:
        """One turn of the loop; whatever breaks it ends every stream aloud, so that none hangs."""
        try:
            return self._loop.turn(commands)
        except Exception as error:  # boundary: the engine's thread outlives a broken turn if its slots came back
            _log.exception("a turn failed")
            self._roster.fail_all(EngineClosedError(f"a turn failed: {type(error).__name__}: {error}"))
            if not (self.kv_pool.balanced and self.codec_pool.balanced):
                raise
            return False

    def _wait(self) -> list[Command]:
        """All commands that have come; waits for one, since there is nothing else to do."""
        first = self._commands.get()
        if isinstance(first, _Stop):
            self._stops.append(first)
            return self._arrived()
        return [first, *self._arrived()]

    def _arrived(self) -> list[Command]:
        """All commands that have come; a stop is set aside."""
        commands: list[Command] = []
        while not self._commands.empty():
            item = self._commands.get()
            if isinstance(item, _Stop):
                self._stops.append(item)
            else:
                commands.append(item)
        return commands

    def _end_everybody(self) -> None:
        """The thread ends: nobody may be left waiting, whatever ended it."""
        with self._lock:
            self._closed = True
        gone = EngineClosedError("the engine is closed")
        self._roster.fail_all(gone)
        for command in self._arrived():
            if isinstance(command, Submit):
                self._roster.add(command.stream)
        self._roster.fail_all(gone)
