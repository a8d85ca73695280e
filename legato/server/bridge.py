"""Bridge between the engine thread and the event loop, and thread pools for blocking work.

A `Bridge` opens streams of one engine for one event loop, and lives as long as the server. Each `AsyncStream` owns the
queue of its packets. The engine thread schedules a callback on the loop and never blocks; the loop never waits for the
engine. The queue has a limit with hysteresis: if more than `ahead_frames` frames wait in it, the stream is paced until
half of the limit is left. A slow reader therefore slows down only its own stream.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from enum import Enum
from types import TracebackType
from typing import ParamSpec, Protocol, TypeVar

from legato.api import Legato
from legato.audio.formats import AudioFormat
from legato.engine.flow_control import UNLIMITED, paced
from legato.engine.handle import OpenedStream, StreamHandle
from legato.engine.request import SpeechRequest
from legato.engine.stats import StreamTiming
from legato.engine.stream import StreamEvent
from legato.errors import GenerationError, LegatoError, StateError
from legato.server.errors import public_error
from legato.types import DEFAULT_PACKET_FRAMES, FinishReason, Packet

P = ParamSpec("P")
T = TypeVar("T")


class Pool(Enum):
    """Kinds of blocking work. Each has its own threads, so that one kind cannot hold up another."""

    OPEN = "open"
    """Opening streams without a reference recording: short computations."""
    PARSE = "parse"
    """Parsing large JSON bodies and base64. One thread: each call holds the interpreter's lock for a while."""
    REFERENCE = "reference"
    """Decoding and encoding reference recordings: seconds of computation each."""
    ENCODE = "encode"
    """Encoding audio with libraries: FLAC, MP3, Opus."""
    FFMPEG = "ffmpeg"
    """Encoding audio with a helper process, which may be stopped or slow: AAC."""
    FETCH = "fetch"
    """Downloading recordings."""
    DISK = "disk"
    """Storing and deleting voices."""


THREADS = {Pool.OPEN: 4, Pool.PARSE: 1, Pool.REFERENCE: 2, Pool.ENCODE: 4, Pool.FFMPEG: 4, Pool.FETCH: 4, Pool.DISK: 2}
"""Threads of each pool."""

_ENCODER_POOLS = {
    AudioFormat.PCM: None,  # microseconds a packet: on the event loop, whatever the pools are busy with
    AudioFormat.WAV: None,
    AudioFormat.FLAC: Pool.ENCODE,
    AudioFormat.MP3: Pool.ENCODE,
    AudioFormat.OPUS: Pool.ENCODE,
    AudioFormat.AAC: Pool.FFMPEG,
}


class AbortableEncoder(Protocol):
    """An audio encoder that can be stopped from another thread."""

    kind: AudioFormat

    def abort(self) -> None:
        """Stop it. Never waits."""


class AsyncStream:
    """One engine stream on an event loop. Use `async with`: leaving the context cancels the stream if it still runs.

    Call all methods except `deliver` on the loop's thread. Iteration raises the error that ended the stream, if any.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, *, limit_frames: int = 0, request_id: str = "") -> None:
        """`limit_frames`: frames that may wait here before the stream is paced; 0: the caller does flow control.

        `request_id`: appears in the errors of the stream, which are those that clients may see.
        """
        self._loop = loop
        self._request_id = request_id
        self._limit_frames = limit_frames
        self._throttled = False
        self._events: deque[StreamEvent] = deque()
        self._arrived = asyncio.Event()
        self._handle: StreamHandle | None = None
        self._end_callbacks: list[Callable[[AsyncStream], None]] = []
        self.notes: tuple[str, ...] = ()
        self.frames = 0
        self.samples = 0
        self.waiting_frames = 0
        """Frames in the queue."""
        self.outcome = ""
        """Value of the `FinishReason` with which the stream ended; "" while it runs."""
        self.error: LegatoError | None = None

    # --- engine thread --------------------------------------------------------------------------------------------

    def deliver(self, event: StreamEvent) -> None:
        """Pass an event to the loop. Never blocks. Events after the loop was closed are dropped."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._arrive, event)

    # --- event loop -----------------------------------------------------------------------------------------------

    @property
    def handle(self) -> StreamHandle:
        """The engine's handle of the stream."""
        assert self._handle is not None, "the bridge attaches a handle before it returns the stream"
        return self._handle

    @property
    def timing(self) -> StreamTiming:
        """Times of the stages of the stream, filled in as they happen."""
        return self.handle.timing

    @property
    def over(self) -> bool:
        """True when the last packet or the error has arrived. The queue may still hold packets."""
        return bool(self.outcome)

    def append_text(self, text: str) -> None:
        """Append text. It may be split at any character."""
        self.handle.append_text(text)

    def end_text(self) -> None:
        """The text is complete."""
        self.handle.end_text()

    def cancel(self) -> None:
        """Cancel the stream; iteration ends with an empty last packet. Idempotent."""
        if self._handle is not None and not self.over:
            self._handle.cancel()

    def on_end(self, callback: Callable[[AsyncStream], None]) -> None:
        """Call `callback` on the loop when the last event arrives, read or not; immediately if it has arrived."""
        if self.over:
            callback(self)
        else:
            self._end_callbacks.append(callback)

    def __aiter__(self) -> AsyncIterator[Packet]:
        return self._packets()

    async def next_event(self, *, consume: bool = True) -> StreamEvent:
        """Wait for the next packet or error. Must not be called after the last one.

        `consume`: report the frames as consumed. Otherwise the caller does, with `handle.report_consumed(frames)`.
        """
        while not self._events:
            self._arrived.clear()
            await self._arrived.wait()
        event = self._events.popleft()
        if isinstance(event, Packet):
            self.waiting_frames -= event.frames
            if consume:
                self.handle.report_consumed(event.frames)
            self._update_flow_control()
        return event

    async def __aenter__(self) -> AsyncStream:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cancel()

    def attach(self, handle: StreamHandle, notes: tuple[str, ...]) -> None:
        """Set the engine's handle. Called by the bridge when the engine has accepted the stream."""
        self._handle = handle
        self.notes = notes

    async def _packets(self) -> AsyncIterator[Packet]:
        while True:
            event = await self.next_event()
            if isinstance(event, LegatoError):
                raise event
            yield event
            if event.last:
                return

    def _arrive(self, event: StreamEvent) -> None:
        if isinstance(event, LegatoError):
            # The client cannot cause a `StateError` of the engine: here it is internal.
            internal = GenerationError(str(event)) if isinstance(event, StateError) else event
            event = public_error(internal, self._request_id)
        self._events.append(event)
        self._arrived.set()
        if isinstance(event, Packet):
            self.waiting_frames += event.frames
            self.frames += event.frames
            self._update_flow_control()
            self.samples += event.sample_count
            if not event.last:
                return
            self.outcome = (event.finish_reason or FinishReason.FAILED).value
        else:
            self.outcome, self.error = FinishReason.FAILED.value, event
        for callback in self._end_callbacks:
            callback(self)

    def _update_flow_control(self) -> None:
        """Pace the stream when the queue is over its limit; lift that when half of the limit is left.

        The gap between the two thresholds keeps a steady reader from switching the mode with every packet.
        """
        if not self._limit_frames or self.over or self._handle is None:
            return
        if not self._throttled and self.waiting_frames > self._limit_frames:
            self._throttled = True
            self.handle.set_flow_control(paced(self._limit_frames))
        elif self._throttled and self.waiting_frames <= self._limit_frames // 2:
            self._throttled = False
            self.handle.set_flow_control(UNLIMITED)


class Bridge:
    """Opens engine streams for the running event loop, and runs blocking work in threads."""

    def __init__(self, tts: Legato, *, ahead_frames: int = 250) -> None:
        self._tts = tts
        self._ahead_frames = ahead_frames
        self._pools = {
            pool: ThreadPoolExecutor(threads, thread_name_prefix=f"legato-server-{pool.value}")
            for pool, threads in THREADS.items()
        }
        self._jobs = dict.fromkeys(Pool, 0)
        self._streams: set[AsyncStream] = set()
        self._watchers: list[Callable[[AsyncStream], None]] = []

    @property
    def streams(self) -> frozenset[AsyncStream]:
        """The streams that still run."""
        return frozenset(self._streams)

    def watch(self, watcher: Callable[[AsyncStream], None]) -> None:
        """Call `watcher` on the loop whenever a stream ends."""
        self._watchers.append(watcher)

    def jobs(self) -> dict[str, int]:
        """Jobs of each pool that run or wait for a thread."""
        return {pool.value: jobs for pool, jobs in self._jobs.items()}

    async def in_thread(self, pool: Pool, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run blocking work in a thread of `pool`. If the caller is cancelled, work that has not started never does."""
        return await asyncio.wrap_future(self._submit(pool, work, *args, **kwargs))

    async def encode(self, encoder: AbortableEncoder, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run `work`, a method of `encoder`, where its format requires. If the caller is cancelled, it is aborted."""
        pool = _ENCODER_POOLS[encoder.kind]
        if pool is None:
            return work(*args, **kwargs)
        try:
            return await self.in_thread(pool, work, *args, **kwargs)
        except asyncio.CancelledError:
            encoder.abort()  # frees the thread: the client has left
            raise

    def _submit(self, pool: Pool, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        loop = asyncio.get_running_loop()
        job = self._pools[pool].submit(work, *args, **kwargs)
        self._jobs[pool] += 1

        def ended() -> None:
            self._jobs[pool] -= 1

        def on_done(_job: Future[T]) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(ended)

        job.add_done_callback(on_done)
        return job

    async def open(
        self, request: SpeechRequest, text: str | None = None, *, ahead_frames: int | None = None, request_id: str = ""
    ) -> AsyncStream:
        """Open a stream. `text`: the complete text; None: the caller feeds it with `append_text` and `end_text`.

        `ahead_frames`: paced mode, at most this many frames ahead of what the caller reports as consumed (0: on hold).
        None: as fast as possible, bounded by the queue. Invalid requests raise here; errors in the text arrive as the
        stream's error. `request_id`: appears in the messages of internal errors.
        """
        if ahead_frames is None:
            # At least two of the longest packets: a single packet must not exceed the limit.
            limit_frames = max(self._ahead_frames, 2 * max(request.packet_frames or DEFAULT_PACKET_FRAMES))
            demand = UNLIMITED
        else:
            limit_frames = 0
            demand = paced(ahead_frames)
        stream = AsyncStream(asyncio.get_running_loop(), limit_frames=limit_frames, request_id=request_id)
        opening = self._submit(
            Pool.OPEN if request.reference is None else Pool.REFERENCE,
            self._tts.open,
            replace(request, flow_control=demand),
            whole_text=text is not None,
            deliver=stream.deliver,
        )
        try:
            opened = await asyncio.wrap_future(opening)
        except asyncio.CancelledError:
            # A running thread cannot be cancelled: the stream still opens, and is cancelled when it has.
            opening.add_done_callback(_cancel_abandoned)
            raise
        stream.attach(opened.handle, opened.notes)
        self._streams.add(stream)
        stream.on_end(self._on_stream_end)
        if text is not None:
            stream.append_text(text)
            stream.end_text()
        return stream

    def close(self) -> None:
        """Cancel all streams and shut the thread pools down."""
        for stream in self.streams:
            stream.cancel()
        for pool in self._pools.values():
            pool.shutdown(wait=False, cancel_futures=True)

    def _on_stream_end(self, stream: AsyncStream) -> None:
        self._streams.discard(stream)
        for watcher in self._watchers:
            watcher(stream)


def _cancel_abandoned(opening: Future[OpenedStream]) -> None:
    """Cancel a stream whose caller was cancelled while it was opening: no one else has a reference to it."""
    if not opening.cancelled() and opening.exception() is None:
        opening.result().handle.cancel()
