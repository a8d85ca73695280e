"""Many streams that begin together in one loop, which is driven by hand: no thread, no client, nobody who comes late.

Owns the streams of one measurement, each with a seed of its own. Tells no time; that is for whoever drives it.
"""

from __future__ import annotations

import time
from dataclasses import replace
from itertools import count

import torch

from legato.engine.assembly import Works, new_stream
from legato.engine.commands import AppendText, Cancel, Command, EndText, Submit
from legato.engine.demand import BACKGROUND
from legato.engine.frontend import BpeFrontEnd, FrontEnd
from legato.engine.stream import StreamEvent, StreamRequest
from legato.errors import LegatoError
from legato.flow import StreamId

TEXT = "The quick brown fox jumps over the lazy dog, and nobody in the village minds it at all. "


class Chorus:
    """`streams` streams of `frames` frames each, which speak `request`."""

    def __init__(self, works: Works, front_end: FrontEnd, request: StreamRequest, *, streams: int, frames: int) -> None:
        self._works = works
        self._failed: list[LegatoError] = []
        self._ids = [StreamId(number) for number in range(streams)]
        self._commands: list[Command] = []
        sequence_ids = count()
        for stream_id in self._ids:
            own = replace(request, seed=int(stream_id), max_frames=frames, demand=BACKGROUND)
            stream = new_stream(stream_id, own, endless(front_end), self._hear, lambda: next(sequence_ids))
            self._commands += [Submit(stream, time.perf_counter())]
            self._commands += [AppendText(stream_id, TEXT * (1 + frames // 20)), EndText(stream_id)]

    @property
    def frames_drawn(self) -> int:
        """Frames of all streams so far."""
        return self._works.runner.frames_drawn

    def turn(self) -> bool:
        """One turn; False when all is spoken. What failed is raised."""
        commands, self._commands = self._commands, []
        with torch.inference_mode():
            busy = self._works.loop.turn(commands)
        if self._failed:
            raise self._failed[0]
        return busy

    def run(self) -> None:
        """Turns until all is spoken."""
        while self.turn():
            continue
        self.stop()

    def stop(self) -> None:
        """Cancel what is still under way."""
        with torch.inference_mode():
            self._works.loop.turn([Cancel(stream_id) for stream_id in self._ids])

    def _hear(self, event: StreamEvent) -> None:
        if isinstance(event, LegatoError):
            self._failed.append(event)


def endless(front_end: FrontEnd) -> FrontEnd:
    """The same, but speech ends with the text: an end that is drawn would make a batch smaller than it is called."""
    return replace(front_end, ends_with_track=True) if isinstance(front_end, BpeFrontEnd) else front_end
