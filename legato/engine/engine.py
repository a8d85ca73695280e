"""Engine: continuous batching over one loaded model. Streams are submitted and packets are read from any thread.

An engine has one thread, which runs from construction until `close`. Only this thread runs engine steps and accesses
the KV and codec slots.
"""

from __future__ import annotations

import atexit
import itertools
import logging
import math
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from legato.backends.base import Backend
from legato.config.engine import EngineConfig
from legato.engine.assembly import assemble, new_stream
from legato.engine.frontend import FrontEnd
from legato.engine.handle import Mailbox, StreamHandle
from legato.engine.heartbeat import EngineHealth, Heartbeat, ThreadState
from legato.engine.memory import allocated_memory
from legato.engine.stats import EngineSnapshot, PoolUse
from legato.engine.stream import Cancel, Command, Drain, StreamEvent, StreamRequest, Submit
from legato.errors import EngineClosedError, LegatoError, QueueFullError
from legato.kernels.threads import release_worker_threads
from legato.types import StreamId

_log = logging.getLogger(__name__)

CLOSE_TIMEOUT_S = 10.0
"""`Engine.close` returns False if a single engine step takes longer than this."""


@dataclass(frozen=True, slots=True)
class _Shutdown:
    """Queue item that ends the engine thread: immediately, or with `drain` after the active streams."""

    drain: bool


class Engine:
    """Continuous batching over one loaded model."""

    def __init__(
        self,
        backend: Backend,
        front_end: FrontEnd,
        config: EngineConfig,
        *,
        clock: Callable[[], float] = time.monotonic,
        poison: bool = False,
        synchronize: Callable[[], None] = lambda: None,
    ) -> None:
        """`poison` fills free slots with NaN (tests). `synchronize` is called after each timed phase (measurements)."""
        self.backend = backend
        self.model = backend.model
        self.front_end = front_end
        self.config = config
        self._clock = clock
        self._commands: queue.SimpleQueue[Command | _Shutdown] = queue.SimpleQueue()
        self._shutdown: _Shutdown | None = None
        self._stream_ids = itertools.count()
        sequence_ids = itertools.count()
        self._next_sequence_id = lambda: next(sequence_ids)
        self._open: set[StreamId] = set()
        self._lock = threading.Lock()
        self._closed = False
        self._heartbeat = Heartbeat(clock)
        parts = assemble(
            backend, config, clock, poison=poison, poll_commands=self._poll_commands, synchronize=synchronize
        )
        self.runner, self.kv_pool, self.codec_pool = parts.runner, parts.kv_pool, parts.codec_pool
        self._core, self._registry, self._stats = parts.core, parts.registry, parts.stats
        memory = allocated_memory(parts.kv_pool.cache, parts.codec_pool.slot_bytes, config)
        _log.info("%s; up to %d streams can wait", memory, config.max_queue)
        release_worker_threads()  # of the thread that loaded the model; the engine thread starts its own workers
        self._thread = threading.Thread(target=self._main, name="legato-engine", daemon=True)
        self._thread.start()
        # A thread that still runs kernels during interpreter shutdown would crash the process.
        atexit.register(self.close)

    def submit(self, request: StreamRequest, deliver: Callable[[StreamEvent], None] | None = None) -> StreamHandle:
        """Start a stream without text. Add text with `append_text` of the handle, and finish it with `end_text`.

        `deliver` receives packets and errors on the engine thread. It must not block; if it raises, its stream fails.
        Without `deliver`, packets and errors are read from the handle. Raises `QueueFullError` if too many streams
        wait, and `EngineClosedError` after `close`.
        """
        received_s = self._clock()
        stream_id = StreamId(next(self._stream_ids))
        mailbox = Mailbox() if deliver is None else None
        receive = mailbox.put if mailbox is not None else deliver
        assert receive is not None

        def on_event(event: StreamEvent) -> None:
            if isinstance(event, LegatoError) or event.last:
                with self._lock:
                    self._open.discard(stream_id)
            receive(event)

        stream = new_stream(stream_id, request, self.front_end, on_event, self._next_sequence_id)
        handle = StreamHandle(stream, mailbox, self._commands.put)
        with self._lock:
            if self._closed:
                raise EngineClosedError("the engine is closed")
            limit = self.config.max_num_seqs + self.config.max_queue
            if len(self._open) >= limit:
                raise QueueFullError(f"{len(self._open)} streams are active or waiting, and the limit is {limit}")
            self._open.add(stream_id)
            self._commands.put(Submit(stream, received_s))
        return handle

    def stats(self) -> EngineSnapshot:
        """Statistics since the start and current use of the slots. May be called from any thread."""
        return self._stats.snapshot(
            streams_open=len(self._open),
            streams_parked=sum(stream.parked_history is not None for stream in self._registry.streams()),
            talker_slots=PoolUse(self.config.kv_slots, self.kv_pool.free),
            codec_slots=PoolUse(self.config.max_num_seqs, self.codec_pool.free),
        )

    def health(self) -> EngineHealth:
        """State of the engine thread and age of its current step. May be called from any thread."""
        health = self._heartbeat.health()
        if health.thread is ThreadState.RUNNING and not self._thread.is_alive():  # for example in a forked child
            return replace(health, thread=ThreadState.DEAD)
        return health

    def close(self, *, drain: bool = False, timeout_s: float = CLOSE_TIMEOUT_S) -> bool:
        """Stop the engine thread: immediately, or with `drain` after the active streams. May be called repeatedly.

        Draining generates the text received so far without flow control and ignores later text. The call waits for
        the thread, at most `timeout_s` for each engine step. It returns False if a step takes longer; the thread then
        still runs, and its streams do not end. A `deliver` callback may call `close`, which then does not wait.
        """
        with self._lock:
            self._closed = True
            self._commands.put(_Shutdown(drain))
        ended = threading.current_thread() is self._thread or self._join(timeout_s)
        if not ended:
            _log.error("the engine thread did not stop: its step takes longer than %g s", timeout_s)
        atexit.unregister(self.close)
        return ended

    def _join(self, timeout_s: float) -> bool:
        """Wait until the engine thread ends, or until no step has finished for `timeout_s`."""
        steps, waited_from_s = -1, time.monotonic()
        while self._thread.is_alive():
            health = self._heartbeat.health()
            if health.steps + health.failed_steps != steps:
                steps, waited_from_s = health.steps + health.failed_steps, time.monotonic()
            elif time.monotonic() - waited_from_s > timeout_s:
                return False
            self._thread.join(0.05)
        return True

    # --- engine thread ------------------------------------------------------------------------------------------------

    def _main(self) -> None:
        state = ThreadState.DEAD
        try:
            with torch.inference_mode():
                self._run()
            state = ThreadState.CLOSED
        except BaseException:  # boundary: no caller could handle it, and SystemExit in a thread would not be reported
            _log.exception("the engine thread died")
        finally:
            self._heartbeat.thread_ended(state)
            self._fail_remaining()

    def _run(self) -> None:
        busy = False
        while not (self._shutdown is not None and not len(self._registry)):
            commands = self._poll_commands() if busy or self._shutdown is not None else self._wait_for_commands()
            busy = self._step(commands)
            if self._shutdown is not None:
                drain = self._shutdown.drain
                ids = [stream.id for stream in self._registry.streams()]
                busy = self._step([Drain(each) if drain else Cancel(each) for each in ids])

    def _step(self, commands: list[Command]) -> bool:
        """Run one engine step. If it raises, all streams end with an error, so that no client waits forever."""
        failed, frames, failed_calls = True, self.runner.frames_sampled, self.runner.failed_calls
        self._heartbeat.step_started()
        try:
            busy = self._core.step(commands)
            failed = False
            return busy
        except Exception as error:  # boundary: the engine keeps running after a failed step if all slots were released
            _log.exception("an engine step failed")
            self._registry.fail_all(EngineClosedError(f"an engine step failed: {type(error).__name__}: {error}"))
            if not (self.kv_pool.all_free and self.codec_pool.all_free):
                raise
            return False
        finally:
            progress = self.runner.frames_sampled > frames
            # If other rows succeeded, a call that failed for one row does not mean that the device failed.
            failed = failed or (self.runner.failed_calls > failed_calls and not progress)
            self._heartbeat.step_finished(failed=failed, progress=progress)

    def _wait_for_commands(self) -> list[Command]:
        """Block until there is a command or `wake_in_s` is over, and return all that have arrived."""
        try:
            first = self._commands.get(timeout=None if math.isinf(self._core.wake_in_s) else self._core.wake_in_s)
        except queue.Empty:
            return []
        if isinstance(first, _Shutdown):
            self._request_shutdown(first)
            return self._poll_commands()
        return [first, *self._poll_commands()]

    def _poll_commands(self) -> list[Command]:
        """Return all commands that have arrived, without blocking. A `_Shutdown` is recorded, not returned."""
        commands: list[Command] = []
        while not self._commands.empty():
            item = self._commands.get()
            if isinstance(item, _Shutdown):
                self._request_shutdown(item)
            else:
                commands.append(item)
        return commands

    def _request_shutdown(self, request: _Shutdown) -> None:
        """Record a shutdown request. With several requests, the engine drains only if all of them ask for it."""
        already_immediate = self._shutdown is not None and not self._shutdown.drain
        self._shutdown = _Shutdown(drain=request.drain and not already_immediate)

    def _fail_remaining(self) -> None:
        """Fail all remaining streams when the thread ends, so that no client waits forever."""
        with self._lock:
            self._closed = True
        closed = EngineClosedError("the engine is closed")
        self._registry.fail_all(closed)
        for command in self._poll_commands():
            if isinstance(command, Submit):
                self._registry.add(command.stream)
        self._registry.fail_all(closed)
