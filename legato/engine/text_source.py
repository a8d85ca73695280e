"""Feeds the caller's text to one stream: a string, an iterable of strings, or an async iterable of strings.

Each stream has its own `TextFeed`. It reads an iterable on a separate thread, and an async iterable on the caller's
event loop, until the text ends, the source raises an error, or the stream ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterable, Callable, Iterable
from typing import TypeVar

from legato.engine.handle import StreamHandle
from legato.errors import InputError

_Text = TypeVar("_Text")
TextSource = str | Iterable[str] | AsyncIterable[str]


def check_text_source(text: TextSource) -> None:
    """Raise `InputError` if `text` is neither a string nor an iterable. Its items are checked as they are read."""
    if isinstance(text, bytes | bytearray | memoryview) or not isinstance(text, str | Iterable | AsyncIterable):
        raise InputError(f"text must be str or an iterable of str, not {type(text).__name__}", field="text")


class TextFeed:
    """Feeds one text to one stream. If the source raises, the stream is cancelled and `error` holds the exception."""

    def __init__(self, handle: StreamHandle, text: TextSource) -> None:
        check_text_source(text)
        self.error: BaseException | None = None
        self._handle = handle
        self._stopped = False
        self._task: asyncio.Task[None] | None = None
        if isinstance(text, str):
            handle.append_text(text)
            handle.end_text()
        elif isinstance(text, AsyncIterable):
            self._start_async(text)
        else:
            self._start_thread(self._read, text)

    def stop(self) -> None:
        """Stop reading: immediately on an event loop, after the current item on a thread. Callable from any thread."""
        self._stopped = True
        task = self._task
        if task is not None and not task.done():
            with contextlib.suppress(RuntimeError):  # the event loop is closed, so the task has ended
                task.get_loop().call_soon_threadsafe(task.cancel)

    def _start_async(self, text: AsyncIterable[str]) -> None:
        """Read on the running event loop, because the source may be bound to it; else on a new loop in a thread."""
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            self._start_thread(lambda source: asyncio.run(self._read_async(source)), text)
        else:
            self._task = loop.create_task(self._read_async(text), name="legato-text")

    def _start_thread(self, read: Callable[[_Text], None], text: _Text) -> None:
        threading.Thread(target=read, args=(text,), name="legato-text", daemon=True).start()

    def _read(self, text: Iterable[str]) -> None:
        try:
            for piece in text:
                if self._stopped:
                    return
                self._handle.append_text(piece)
        except BaseException as error:  # boundary: raised by the caller's iterator; re-raised where packets are read
            self._fail(error)
        else:
            self._handle.end_text()

    async def _read_async(self, text: AsyncIterable[str]) -> None:
        try:
            async for piece in text:
                if self._stopped:
                    return
                self._handle.append_text(piece)
        except asyncio.CancelledError:
            self._handle.cancel()
            raise
        except BaseException as error:  # boundary: as in `_read`
            self._fail(error)
        else:
            self._handle.end_text()

    def _fail(self, error: BaseException) -> None:
        self.error = error
        self._handle.cancel()
