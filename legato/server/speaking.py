"""One utterance of a session on its way through the engine: what was asked, what was fed, its stream once there is one.

A `Speaking` lives from the moment its first text comes until the client was told how it ended. What happens before the
engine has taken the stream is remembered, and told to it then. Knows no machine.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from legato.engine.demand import paced
from legato.engine.resolve import SpeechRequest
from legato.server.bridge import AsyncStream
from legato.server.records import RequestRecord
from legato.session.events import CancelStream, EndFeed, EngineAction, FeedText, SetDemand, TakeFrames


@dataclass(slots=True)
class Speaking:
    """One utterance's stream: what it was asked, what it was fed, and the stream once the engine has taken it."""

    request: SpeechRequest
    record: RequestRecord
    ahead_frames: int
    whole: bool
    """All its text was there before it was opened, by the client's own words and not by chance."""
    text: list[str] = field(default_factory=list)
    ended: bool = False
    streams: list[AsyncStream] = field(default_factory=list)
    tasks: list[asyncio.Task[None]] = field(default_factory=list)

    def do(self, action: EngineAction) -> None:
        """Carry out what the session asks for this utterance."""
        fed = [] if self.whole else self.streams
        match action:
            case FeedText(text=text):
                self.text.append(text)
                for stream in fed:
                    stream.append_text(text)
            case EndFeed():
                self.ended = True
                for stream in fed:
                    stream.end_text()
            case SetDemand(ahead_frames=ahead):
                self.ahead_frames = ahead
                for stream in self.streams:
                    stream.handle.set_demand(paced(max(1, ahead)))
            case TakeFrames(frames=frames):
                for stream in self.streams:
                    stream.handle.consumed(frames)
            case CancelStream():
                for task in self.tasks:
                    task.cancel()

    def attach(self, stream: AsyncStream) -> None:
        """The engine has taken the stream: tell it what happened meanwhile."""
        self.record.status, self.record.notes = "speaking", stream.notes
        self.record.timings.append(stream.timing)
        self.streams.append(stream)
        stream.handle.set_demand(paced(max(1, self.ahead_frames)))
        if not self.whole:
            stream.append_text("".join(self.text))
            if self.ended:
                stream.end_text()
