"""A session with everything around it faked: a clock that is set, an engine that makes packets, a device that plays.

At 1000 Hz a sample is a millisecond, and a frame has 80 of them. The engine obeys demand as the real one does; the
device plays what it was given in real time and drops what it holds when it is told that the session stopped.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from legato.flow import FinishReason, Packet, StreamId
from legato.session.events import (
    Audio,
    CancelStream,
    EndFeed,
    EndText,
    EngineAction,
    Failed,
    FeedText,
    Interrupted,
    OpenStream,
    Outgoing,
    PacketCame,
    Played,
    SessionEvent,
    SetDemand,
    Stopped,
    TakeFrames,
    TimePassed,
    UtteranceId,
    Write,
)
from legato.session.machine import Session
from legato.session.playback import PlaybackLimits

RATE_HZ = 1000
FRAME = 80


def limits(*, buffer_ms: int = 2000, lead_ms: int = 0, start_ms: int = 0) -> PlaybackLimits:
    """Limits at this world's rate."""
    return PlaybackLimits(RATE_HZ, FRAME, buffer_ms=buffer_ms, lead_ms=lead_ms, start_ms=start_ms)


def packet(first_sample: int, frames: int, *, last: bool = False) -> Packet:
    """A packet of silence."""
    return Packet(
        stream=StreamId(0),
        first_sample=first_sample,
        frames=frames,
        sample_rate_hz=RATE_HZ,
        float32_le=bytes(4 * FRAME * frames),
        last=last,
        finish_reason=FinishReason.EOS if last else None,
    )


@dataclass
class FakeStream:
    """What the engine knows of one utterance: a frame for each character of its text."""

    ahead: int
    taken: int = 0
    text: str = ""
    ended: bool = False
    cancelled: bool = False
    frames: int = 0
    over: bool = False


@dataclass
class FakeDevice:
    """Plays in real time. `heard` lists (utterance, first sample, samples), joined where they touch."""

    held: deque[tuple[UtteranceId, int, int]] = field(default_factory=deque)
    heard: list[tuple[UtteranceId, int, int]] = field(default_factory=list)
    most_held: int = 0
    silent: int = 0

    def give(self, utterance: UtteranceId, first: int, count: int) -> None:
        self.held.append((utterance, first, count))
        self.most_held = max(self.most_held, sum(piece[2] for piece in self.held))

    def play(self, samples: int) -> None:
        while samples and self.held:
            utterance, first, count = self.held.popleft()
            step = min(samples, count)
            self._hear(utterance, first, step)
            samples -= step
            if step < count:
                self.held.appendleft((utterance, first + step, count - step))
        self.silent += samples

    def heard_of(self, utterance: UtteranceId) -> int:
        return sum(count for each, _, count in self.heard if each == utterance)

    def _hear(self, utterance: UtteranceId, first: int, count: int) -> None:
        if self.heard and self.heard[-1][0] == utterance and sum(self.heard[-1][1:]) == first:
            self.heard[-1] = (utterance, self.heard[-1][1], self.heard[-1][2] + count)
        else:
            self.heard.append((utterance, first, count))


class World:
    """`speed`: how many times faster than real time the engine makes frames; `packet_frames` a packet.

    Time goes in steps of `step_ms`.
    """

    def __init__(self, playback: PlaybackLimits, *, speed: int = 10, packet_frames: int = 1, step_ms: int = 8) -> None:
        self.now_ms = 0
        self.session = Session(playback, lambda: self.now_ms / 1000)
        self.streams: dict[UtteranceId, FakeStream] = {}
        self.device = FakeDevice()
        self.items: list[Outgoing] = []
        self.step_ms = step_ms
        self._speed = speed
        self._packet_frames = packet_frames
        self._work_ms = 0

    def take(self, event: SessionEvent) -> None:
        """Give the session an event, carry its actions out, and pass on what it has to send."""
        for action in self.session.take(event):
            self._do(action)
        self.send()

    def say(self, text: str, *, replaces: bool = False) -> UtteranceId:
        """A whole utterance."""
        self.take(Write(text, replaces))
        (utterance,) = self.session.open_utterance
        self.take(EndText())
        return utterance

    def run(self, milliseconds: int) -> None:
        """Let time pass, `step_ms` at a time."""
        while milliseconds > 0:
            step = min(milliseconds, self.step_ms)
            milliseconds -= step
            self.now_ms += step
            self.device.play(step)
            self._generate(step)
            self.take(TimePassed())

    def run_out(self, most_ms: int = 60_000) -> None:
        """Let time pass until nothing is left to do."""
        while True:
            if self.session.idle:
                return
            self.run(self.step_ms)
            most_ms -= self.step_ms
            if most_ms < 0:
                break
        raise AssertionError("the session never became idle")

    def send(self) -> None:
        """Give the device what the session lets go."""
        while items := self.session.pull():
            for item in items:
                self.items.append(item)
                if isinstance(item, Audio):
                    self.device.give(item.utterance, item.packet.first_sample, item.packet.sample_count)
                elif isinstance(item, Stopped):
                    self.device.held.clear()

    def of(self, kind: type[Outgoing]) -> list[Outgoing]:
        """All items of one kind that were sent."""
        return [item for item in self.items if isinstance(item, kind)]

    def _do(self, action: EngineAction) -> None:
        stream = self.streams.get(action.utterance)
        match action:
            case OpenStream(utterance=utterance, ahead_frames=ahead):
                self.streams[utterance] = FakeStream(ahead)
                return
        assert stream is not None
        match action:
            case FeedText(text=text):
                stream.text += text
            case EndFeed():
                stream.ended = True
            case CancelStream():
                stream.cancelled = True
            case SetDemand(ahead_frames=ahead):
                stream.ahead = ahead
            case TakeFrames(frames=frames):
                stream.taken += frames

    def _generate(self, milliseconds: int) -> None:
        """One engine: a frame takes 80 ms / speed, for the first stream that wants one."""
        self._work_ms += self._speed * milliseconds
        while self._work_ms >= FRAME * self._packet_frames:
            ready = [pair for pair in self.streams.items() if self._wants(pair[1])]
            if not ready:
                self._work_ms = 0
                return
            utterance, stream = ready[0]
            frames = min(self._packet_frames, len(stream.text) - stream.frames)
            self._work_ms -= FRAME * self._packet_frames
            stream.over = stream.ended and stream.frames + frames == len(stream.text)
            made = packet(stream.frames * FRAME, frames, last=stream.over)
            stream.frames += frames
            self.take(PacketCame(utterance, made))

    def _wants(self, stream: FakeStream) -> bool:
        if stream.over or stream.cancelled:
            return False
        known = len(stream.text) - stream.frames
        enough = known >= self._packet_frames or stream.ended
        return enough and stream.frames < stream.taken + max(stream.ahead, self._packet_frames)


def outcomes(world: World, utterance: UtteranceId) -> list[Played | Interrupted | Failed]:
    """Everything that says how an utterance ended."""
    found: list[Played | Interrupted | Failed] = []
    for item in world.items:
        if isinstance(item, Played | Failed) and item.utterance == utterance:
            found.append(item)
        if isinstance(item, Stopped):
            found += [each for each in item.utterances if each.utterance == utterance]
    return found
