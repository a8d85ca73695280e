"""The one place where the engine's thread and the event loop meet.

A `Bridge` opens streams of one engine for one event loop. Each `AsyncStream` owns the queue of its packets between the
two: the engine's thread only ever puts a callback on the loop and goes on; the loop never waits for the engine. The
queue is bounded: when more than `ahead_frames` wait in it, the stream's demand is lowered until half of them are taken,
so a reader that is slow holds back its own stream and nothing else. Whoever leaves an `AsyncStream` cancels it.

References are read and encoded in a pool of threads here, never on the loop. Knows no protocol and no format.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import TracebackType
from typing import ParamSpec, TypeVar

from legato.api import Legato
from legato.engine.demand import UNLIMITED, paced
from legato.engine.handle import Opened, StreamHandle
from legato.engine.resolve import SpeechRequest
from legato.engine.stats import StreamTiming
from legato.engine.stream import StreamEvent
from legato.errors import LegatoError
from legato.flow import FinishReason, Packet

P = ParamSpec("P")
T = TypeVar("T")

THREADS = 4
"""Threads for what would hold the loop up: reading references, encoding audio."""


class AsyncStream:
    """The packets of one utterance on an event loop. Use `async with`: leaving it, however, cancels what still runs.

    All methods belong to the loop's thread. Iterating raises the error that ended the stream, if one did.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, *, limit_frames: int = 0) -> None:
        """`limit_frames`: how many may wait here before generation is held back; 0 leaves the demand alone."""
        self._loop = loop
        self._limit_frames = limit_frames
        self._held_back = False
        self._events: deque[StreamEvent] = deque()
        self._arrived = asyncio.Event()
        self._handles: list[StreamHandle] = []
        self._ends: list[Callable[[AsyncStream], None]] = []
        self.notes: tuple[str, ...] = ()
        self.frames = 0
        self.samples = 0
        self.waiting_frames = 0
        """Frames that arrived and were not taken."""
        self.outcome = ""
        """Why it ended: a finish reason's value, or "failed"; "" while it runs."""
        self.error: LegatoError | None = None

    # --- what the engine's thread calls ---------------------------------------------------------------------------

    def deliver(self, event: StreamEvent) -> None:
        """Hand an event to the loop. Never blocks; after the loop was closed there is nobody to tell."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._arrive, event)

    # --- on the loop ----------------------------------------------------------------------------------------------

    @property
    def handle(self) -> StreamHandle:
        """The engine's side of the stream."""
        return self._handles[0]

    @property
    def timing(self) -> StreamTiming:
        """When its stages happened, filled in as they do."""
        return self.handle.timing

    @property
    def over(self) -> bool:
        """True once its last packet or its error has arrived (there may still be packets to take)."""
        return bool(self.outcome)

    def append_text(self, text: str) -> None:
        """More text, cut anywhere."""
        self.handle.append_text(text)

    def end_text(self) -> None:
        """No more text will come."""
        self.handle.end_text()

    def cancel(self) -> None:
        """Stop; the iteration ends with an empty last packet. Any number of times, at any time."""
        if self._handles and not self.over:
            self.handle.cancel()

    def on_end(self, callback: Callable[[AsyncStream], None]) -> None:
        """Call `callback` on the loop when the stream's last event arrives, taken or not; at once if it has."""
        if self.over:
            callback(self)
        else:
            self._ends.append(callback)

    def __aiter__(self) -> AsyncIterator[Packet]:
        return self._packets()

    async def next_event(self, *, consume: bool = True) -> StreamEvent:
        """The next packet or error; waits for it. Must not be called after the last one.

        Without `consume` the caller tells `handle.consumed(frames)` itself, when they were heard.
        """
        while not self._events:
            self._arrived.clear()
            await self._arrived.wait()
        event = self._events.popleft()
        if isinstance(event, Packet):
            self.waiting_frames -= event.frames
            if consume:
                self.handle.consumed(event.frames)
            self._balance()
        return event

    async def __aenter__(self) -> AsyncStream:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cancel()

    def attach(self, handle: StreamHandle, notes: tuple[str, ...]) -> None:
        """Called by the bridge once the engine has taken the stream."""
        self._handles.append(handle)
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
        self._events.append(event)
        self._arrived.set()
        if isinstance(event, Packet):
            self.waiting_frames += event.frames
            self.frames += event.frames
            self._balance()
            self.samples += event.sample_count
            if not event.last:
                return
            self.outcome = (event.finish_reason or FinishReason.FAILED).value
        else:
            self.outcome, self.error = FinishReason.FAILED.value, event
        for callback in self._ends:
            callback(self)

    def _balance(self) -> None:
        """Lower the demand when the queue is full, raise it again when half of it is taken."""
        if not self._limit_frames or self.over or not self._handles:
            return
        if not self._held_back and self.waiting_frames > self._limit_frames:
            self._held_back = True
            self.handle.set_demand(paced(self._limit_frames))
        elif self._held_back and self.waiting_frames <= self._limit_frames // 2:
            self._held_back = False
            self.handle.set_demand(UNLIMITED)


class Bridge:
    """Opens streams of one engine for the running event loop, and runs blocking work beside it."""

    def __init__(self, tts: Legato, *, ahead_frames: int = 250) -> None:
        self._tts = tts
        self._ahead_frames = ahead_frames
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="legato-server")
        self._streams: set[AsyncStream] = set()
        self._watchers: list[Callable[[AsyncStream], None]] = []

    @property
    def streams(self) -> frozenset[AsyncStream]:
        """The streams that are not over."""
        return frozenset(self._streams)

    def watch(self, watcher: Callable[[AsyncStream], None]) -> None:
        """Call `watcher` on the loop for every stream that ends."""
        self._watchers.append(watcher)

    async def in_thread(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run blocking work in one of the bridge's threads."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, lambda: work(*args, **kwargs))

    async def open(
        self, asked: SpeechRequest, text: str | None = None, *, ahead_frames: int | None = None
    ) -> AsyncStream:
        """Start a stream: with its whole `text`, or without any, to be fed by `append_text` and `end_text`.

        `ahead_frames`: a live listener, who says what he took, and never more than so many frames ahead of him;
        without it the stream runs as fast as it can. Refusals are raised here; what is wrong with the text comes as
        the stream's error.
        """
        limit = 0 if ahead_frames else max(self._ahead_frames, 2 * max(asked.packet_frames))
        stream = AsyncStream(asyncio.get_running_loop(), limit_frames=limit)
        demand = paced(ahead_frames) if ahead_frames else UNLIMITED
        opening = asyncio.ensure_future(
            self.in_thread(
                self._tts.open, replace(asked, demand=demand), whole_text=text is not None, deliver=stream.deliver
            )
        )
        try:
            opened = await asyncio.shield(opening)
        except asyncio.CancelledError:
            opening.add_done_callback(_cancel_unwanted)
            raise
        stream.attach(opened.handle, opened.notes)
        self._streams.add(stream)
        stream.on_end(self._ended)
        if text is not None:
            stream.append_text(text)
            stream.end_text()
        return stream

    def close(self) -> None:
        """Cancel what runs and end the threads."""
        for stream in self.streams:
            stream.cancel()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _ended(self, stream: AsyncStream) -> None:
        self._streams.discard(stream)
        for watcher in self._watchers:
            watcher(stream)


def _cancel_unwanted(opening: asyncio.Future[Opened]) -> None:
    """The one who asked left while the stream was being opened: nobody else knows of it."""
    if not opening.cancelled() and opening.exception() is None:
        opening.result().handle.cancel()
