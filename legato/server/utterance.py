"""One utterance of a session and its engine stream.

An `ActiveUtterance` is owned by the session runner, from the utterance's first text until its end is reported to the
client. The engine stream opens asynchronously; text and flow control that come before are kept and applied then.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from legato.engine.flow_control import paced
from legato.engine.request import SpeechRequest
from legato.errors import LegatoError
from legato.server.bridge import AsyncStream, Bridge
from legato.server.request_records import RequestRecord
from legato.session.events import CancelStream, ConsumeFrames, EndFeed, EngineAction, FeedText, SetAheadFrames


@dataclass(slots=True)
class ActiveUtterance:
    """Request, text and stream of one utterance."""

    bridge: Bridge
    """Opens the stream on the engine of its model."""
    request: SpeechRequest
    record: RequestRecord
    ahead_frames: int
    complete_text: bool
    """True if the client sent the whole text at once. The stream then opens with the text, and its prompt may contain
    all of it. This must depend on the protocol only: text that happens to arrive early must not change the audio."""
    text: list[str] = field(default_factory=list)
    characters: int = 0
    """Length of `text`."""
    text_ended: bool = False
    failure: LegatoError | None = None
    """Why the server ended the utterance."""
    stream: AsyncStream | None = None
    """None until the engine has accepted the stream."""
    task: asyncio.Task[None] | None = None

    def execute(self, action: EngineAction) -> None:
        """Execute an action of the session on this utterance."""
        stream = self.stream
        fed_stream = None if self.complete_text else stream
        match action:
            case FeedText(text=text):
                self.text.append(text)
                self.characters += len(text)
                if fed_stream is not None:
                    fed_stream.append_text(text)
            case EndFeed():
                self.text_ended = True
                if fed_stream is not None:
                    fed_stream.end_text()
            case SetAheadFrames(ahead_frames=ahead_frames):
                self.ahead_frames = ahead_frames
                if stream is not None:
                    stream.handle.set_flow_control(paced(ahead_frames))
            case ConsumeFrames(frames=frames):
                if stream is not None:
                    stream.handle.report_consumed(frames)
            case CancelStream():
                if self.task is not None:
                    self.task.cancel()  # cancels the stream, whether it is open or still opening

    def attach(self, stream: AsyncStream) -> None:
        """Set the open stream, and apply the text and flow control that came before."""
        self.stream = stream
        self.record.status, self.record.notes = "speaking", stream.notes
        self.record.timing = stream.timing
        stream.handle.set_flow_control(paced(self.ahead_frames))
        if not self.complete_text:
            stream.append_text("".join(self.text))
            if self.text_ended:
                stream.end_text()
