"""One submitted stream as its client holds it: the commands that flow back, the packets that come out.

Owns the packets between the engine's thread and their reader, who is a thread (`for`) or an event loop (`async for`).
Knows no slot and no tensor.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from dataclasses import dataclass

from legato.engine.commands import AppendText, Cancel, Command, EndText, SetDemand, Taken
from legato.engine.demand import Demand, Pace
from legato.engine.stream import Stream, StreamEvent
from legato.engine.words import spoken_words
from legato.errors import LegatoError, StateError
from legato.flow import Packet, SpokenWord


class Mailbox:
    """Events on their way to one reader. `put` never waits for him, and wakes a thread or an event loop alike."""

    def __init__(self) -> None:
        self._events: deque[StreamEvent] = deque()
        self._arrived = threading.Condition()
        self._waiting: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = []

    def put(self, event: StreamEvent) -> None:
        """Called in the engine's thread."""
        with self._arrived:
            self._events.append(event)
            self._arrived.notify()
            waiting, self._waiting = self._waiting, []
        for loop, future in waiting:
            loop.call_soon_threadsafe(_wake, future)

    def get(self) -> StreamEvent:
        """The next event; the calling thread waits for it."""
        with self._arrived:
            while not self._events:
                self._arrived.wait()
            return self._events.popleft()

    async def get_async(self) -> StreamEvent:
        """The next event; the event loop goes on meanwhile."""
        loop = asyncio.get_running_loop()
        while True:
            with self._arrived:
                if self._events:
                    return self._events.popleft()
                future = loop.create_future()
                self._waiting.append((loop, future))
            await future


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():  # its task may have been cancelled meanwhile
        future.set_result(None)


class StreamHandle:
    """The client's end of a stream.

    Iterate over it, in one thread or in one task, unless the packets are delivered to a callable. The iteration raises
    the error that ended the stream, if one did. Commands may be given from any thread, also from the callable. A handle
    that is dropped while its packets were still to be read cancels its stream.
    """

    def __init__(self, stream: Stream, mailboxes: tuple[Mailbox, ...], tell: Callable[[Command], None]) -> None:
        self.id = stream.id
        self.timing = stream.timing
        self._stream = stream
        self._mailboxes = mailboxes
        self._tell = tell
        self.source_errors: list[BaseException] = []
        self._over = False
        self._paced = stream.request.demand.pace is Pace.PACED
        self._taken = 0

    def __del__(self) -> None:
        if self._mailboxes and not self._over:
            self._tell(Cancel(self.id))

    @property
    def budget_frames(self) -> int:
        """The text-scaled limit of the text that was read so far, in frames; 0 where the track itself is the limit."""
        return sum(each.budget_frames for each in self._stream.sequences if not each.ends_with_track)

    @property
    def text_tokens(self) -> int:
        """Tokens of the text track that were committed so far, all sequences together."""
        return sum(len(each.track.tokens) for each in self._stream.sequences)

    def words(self, frame_samples: int) -> list[SpokenWord]:
        """Words whose place in the sound is known by now; empty where the front end knows no times."""
        return spoken_words(list(self._stream.sequences), frame_samples)

    def append_text(self, text: str) -> None:
        """More text, cut anywhere."""
        self._tell(AppendText(self.id, text))

    def end_text(self) -> None:
        """No more text will come."""
        self._tell(EndText(self.id))

    def feed(self, text: str | Iterable[str]) -> None:
        """The whole text: at once, or in pieces from an iterable that a thread of its own reads as they come.

        An iterable that breaks cancels the stream and leaves its error in `source_errors`.
        """
        if isinstance(text, str):
            self.append_text(text)
            self.end_text()
        else:
            threading.Thread(target=self._feed, args=(text,), name="legato-text", daemon=True).start()

    def _feed(self, pieces: Iterable[str]) -> None:
        try:
            for piece in pieces:
                self.append_text(piece)
        except BaseException as error:  # boundary: the source of text broke; its error is raised where packets are read
            self.source_errors.append(error)
            self.cancel()
            return
        self.end_text()

    def cancel(self) -> None:
        """Stop the stream; allowed at any time, any number of times. The packets end with an empty last one."""
        self._tell(Cancel(self.id))

    def set_demand(self, demand: Demand) -> None:
        """From now on run ahead as far as `demand` says."""
        self._paced = demand.pace is Pace.PACED
        self._tell(SetDemand(self.id, demand, self._taken))

    def consumed(self, frames: int) -> None:
        """The listener took `frames` more frames, so a paced stream may go on. The iterators say it themselves."""
        self._taken += frames
        if self._paced:
            self._tell(Taken(self.id, self._taken))

    # --- reading ------------------------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Packet]:
        return self

    def __next__(self) -> Packet:
        if self._over:
            raise StopIteration
        return self._read(self._mailbox().get())

    def __aiter__(self) -> AsyncIterator[Packet]:
        return self

    async def __anext__(self) -> Packet:
        if self._over:
            raise StopAsyncIteration
        return self._read(await self._mailbox().get_async())

    def _mailbox(self) -> Mailbox:
        if not self._mailboxes:
            raise StateError("the packets of this stream are delivered to a callable, so there is nothing to iterate")
        return self._mailboxes[0]

    def _read(self, event: StreamEvent) -> Packet:
        if isinstance(event, LegatoError):
            self._over = True
            raise event
        self._over = event.last
        if not event.last:
            self.consumed(event.frames)
        return event


@dataclass(frozen=True, slots=True)
class Opened:
    """A submitted stream that has no text yet, and what its client should be told about it."""

    handle: StreamHandle
    notes: tuple[str, ...]
