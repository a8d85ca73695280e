"""Client side of a stream: the handle that sends commands and reads packets, from a thread or an event loop.

A `StreamHandle` is owned by the client. It buffers the delivered packets that the client has not read.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from dataclasses import dataclass

from legato.engine.flow_control import FlowControl, FlowMode
from legato.engine.sequence import Sequence
from legato.engine.stream import (
    AppendText,
    Cancel,
    Command,
    Consumed,
    EndText,
    SetFlowControl,
    Stream,
    StreamEvent,
)
from legato.errors import InputError, LegatoError, StateError
from legato.types import Packet, SpokenWord


class Mailbox:
    """Unbounded event queue for a single reader, either a thread or an asyncio task. `put` never blocks."""

    def __init__(self) -> None:
        self._events: deque[StreamEvent] = deque()
        self._arrived = threading.Condition()
        self._waiting: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = []

    def put(self, event: StreamEvent) -> None:
        """Add an event and wake the reader. Called on the engine thread."""
        with self._arrived:
            self._events.append(event)
            self._arrived.notify()
            waiting, self._waiting = self._waiting, []
        for loop, future in waiting:
            loop.call_soon_threadsafe(_wake, future)

    def get(self) -> StreamEvent:
        """The next event; blocks the calling thread until there is one."""
        with self._arrived:
            while not self._events:
                self._arrived.wait()
            return self._events.popleft()

    async def get_async(self) -> StreamEvent:
        """The next event; does not block the event loop."""
        loop = asyncio.get_running_loop()
        while True:
            with self._arrived:
                if self._events:
                    return self._events.popleft()
                future = loop.create_future()
                self._waiting.append((loop, future))
            await future


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():  # its task may have been cancelled in the meantime
        future.set_result(None)


class StreamHandle:
    """Handle of a submitted stream.

    Iterate over it in one thread or one task, unless packets are delivered to a callback. If the stream failed, the
    iteration raises its error. Commands may be sent from any thread, including the callback. Garbage collection of a
    handle that was not read to its end cancels the stream.
    """

    def __init__(self, stream: Stream, mailbox: Mailbox | None, send: Callable[[Command], None]) -> None:
        """`mailbox`: None if packets are delivered to a callback. `send` queues a command for the engine."""
        self.id = stream.id
        self.timing = stream.timing
        self._stream = stream
        self._mailbox = mailbox
        self._send = send
        self._over = False
        self._paced = stream.request.flow_control.mode is FlowMode.PACED
        self._consumed = 0

    def __del__(self) -> None:
        if self._mailbox is not None and not self._over:
            self._send(Cancel(self.id))

    @property
    def budget_frames(self) -> int:
        """Frame limit computed from the text so far; 0 for models whose speech ends with its text."""
        return sum(each.budget_frames for each in self._stream.sequences if not each.ends_with_text)

    @property
    def text_tokens(self) -> int:
        """Text tokens committed so far, in all sequences."""
        return sum(len(each.tokenizer.tokens) for each in self._stream.sequences)

    @property
    def known_frames(self) -> int | None:
        """Frames of the whole stream, if they are known: its text is complete, and its speech ends with the text.

        The speech may still be shorter, if the watchdog ends it. May be called from any thread: the value appears once
        and stays the same.
        """
        if not self._stream.intake.ended:
            return None
        sequences = list(self._stream.sequences)
        if not all(each.ends_with_text and each.tokenizer.ended for each in sequences):
            return None
        frames = sum(len(each.tokenizer.tokens) for each in sequences)
        return min(frames, self._stream.request.max_frames or frames)

    def words(self, frame_samples: int) -> list[SpokenWord]:
        """Words with known times so far; empty if the front end has no word times."""
        return spoken_words(list(self._stream.sequences), frame_samples)

    def append_text(self, text: str) -> None:
        """Append text, which may be cut at any character. `InputError` if it is not a string."""
        if not isinstance(text, str):
            raise InputError(f"text must be str, not {type(text).__name__}", field="text")
        self._send(AppendText(self.id, text))

    def end_text(self) -> None:
        """Mark the end of the text."""
        self._send(EndText(self.id))

    def cancel(self) -> None:
        """Stop the stream. Allowed at any time and repeatedly. An empty last packet follows."""
        self._send(Cancel(self.id))

    def set_flow_control(self, flow_control: FlowControl) -> None:
        """Replace the flow control."""
        self._paced = flow_control.mode is FlowMode.PACED
        self._send(SetFlowControl(self.id, flow_control, self._consumed))

    def report_consumed(self, frames: int) -> None:
        """Report `frames` more frames as consumed. A paced stream may then generate more. Iteration calls it itself."""
        self._consumed += frames
        if self._paced:
            self._send(Consumed(self.id, self._consumed))

    # --- reading ------------------------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Packet]:
        return self

    def __next__(self) -> Packet:
        if self._over:
            raise StopIteration
        return self._receive(self._require_mailbox().get())

    def __aiter__(self) -> AsyncIterator[Packet]:
        return self

    async def __anext__(self) -> Packet:
        if self._over:
            raise StopAsyncIteration
        return self._receive(await self._require_mailbox().get_async())

    def _require_mailbox(self) -> Mailbox:
        if self._mailbox is None:
            raise StateError("this stream delivers its packets to a callback and cannot be iterated")
        return self._mailbox

    def _receive(self, event: StreamEvent) -> Packet:
        if isinstance(event, LegatoError):
            self._over = True
            raise event
        self._over = event.last
        if not event.last:
            self.report_consumed(event.frames)
        return event


@dataclass(frozen=True, slots=True)
class OpenedStream:
    """A submitted stream that has no text yet, and notes for the client."""

    handle: StreamHandle
    notes: tuple[str, ...]


def spoken_words(sequences: Iterable[Sequence], frame_samples: int) -> list[SpokenWord]:
    """Words of a stream with their text and sample ranges, in order, up to the last word whose position is known.

    The position of a sequence is known once all earlier sequences have ended. May be called from any thread while the
    engine runs, because the values that it reads only grow.
    """
    words: list[SpokenWord] = []
    frames, characters = 0, 0
    for sequence in sequences:
        # Read `has_ended` before the words and frames: if it is True, both are final.
        ended = sequence.has_ended
        for word in tuple(sequence.tokenizer.words):
            words.append(
                SpokenWord(
                    text_start=characters + word.text_start,
                    text_end=characters + word.text_end,
                    first_sample=round((frames + word.start_frame) * frame_samples),
                    end_sample=round((frames + word.end_frame) * frame_samples),
                )
            )
        if not ended:
            break
        frames += sequence.frames
        characters += sequence.characters
    return words
