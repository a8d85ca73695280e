"""Simulated environment of a session: a settable clock, a fake engine and a fake audio device.

The sample rate is 1000 Hz, so a sample is a millisecond, and a frame has 80 samples. The engine follows flow control as
the real one does. The device plays in real time and drops its buffer when the session reports `Cancelled`.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from legato.session.events import (
    AddText,
    AudioPacket,
    Cancelled,
    CancelStream,
    ClockTick,
    ConsumeFrames,
    EndFeed,
    EndUtterance,
    EngineAction,
    FeedText,
    InterruptionReport,
    OpenStream,
    PacketReceived,
    PlaybackFinished,
    SessionEvent,
    SessionOutput,
    SetAheadFrames,
    UtteranceFailed,
    UtteranceId,
)
from legato.session.playback import PlaybackLimits
from legato.session.session import Session
from legato.types import FinishReason, Packet, StreamId

RATE_HZ = 1000
FRAME = 80


def limits(*, buffer_ms: int = 2000, lead_ms: int = 0, start_ms: int = 0) -> PlaybackLimits:
    """Playback limits at the simulated sample rate."""
    return PlaybackLimits(
        sample_rate_hz=RATE_HZ, frame_samples=FRAME, buffer_ms=buffer_ms, lead_ms=lead_ms, start_ms=start_ms
    )


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
    """Engine stream of one utterance: generates one frame per character of its text."""

    ahead_frames: int
    consumed_frames: int = 0
    text: str = ""
    text_ended: bool = False
    cancelled: bool = False
    frames: int = 0
    finished: bool = False


@dataclass
class FakeDevice:
    """Device that plays in real time. `heard`: (utterance, first sample, samples) played, contiguous pieces merged."""

    buffered: deque[tuple[UtteranceId, int, int]] = field(default_factory=deque)
    heard: list[tuple[UtteranceId, int, int]] = field(default_factory=list)
    max_buffered_samples: int = 0
    silent_samples: int = 0

    def receive(self, utterance_id: UtteranceId, first: int, count: int) -> None:
        self.buffered.append((utterance_id, first, count))
        self.max_buffered_samples = max(self.max_buffered_samples, sum(piece[2] for piece in self.buffered))

    def play(self, samples: int) -> None:
        while samples and self.buffered:
            utterance_id, first, count = self.buffered.popleft()
            step = min(samples, count)
            self._record(utterance_id, first, step)
            samples -= step
            if step < count:
                self.buffered.appendleft((utterance_id, first + step, count - step))
        self.silent_samples += samples

    def heard_of(self, utterance_id: UtteranceId) -> int:
        return sum(count for each, _, count in self.heard if each == utterance_id)

    def _record(self, utterance_id: UtteranceId, first: int, count: int) -> None:
        if self.heard and self.heard[-1][0] == utterance_id and sum(self.heard[-1][1:]) == first:
            self.heard[-1] = (utterance_id, self.heard[-1][1], self.heard[-1][2] + count)
        else:
            self.heard.append((utterance_id, first, count))


class World:
    """A session with engine and device. Time advances in steps of `step_ms`.

    `speed`: engine speed as a multiple of real time. `packet_frames`: frames per packet.
    """

    def __init__(self, playback: PlaybackLimits, *, speed: int = 10, packet_frames: int = 1, step_ms: int = 8) -> None:
        self.now_ms = 0
        self.session = Session(playback, lambda: self.now_ms / 1000)
        self.streams: dict[UtteranceId, FakeStream] = {}
        self.device = FakeDevice()
        self.outputs: list[SessionOutput] = []
        self.step_ms = step_ms
        self._speed = speed
        self._packet_frames = packet_frames
        self._work_ms = 0

    def handle(self, event: SessionEvent) -> None:
        """Pass an event to the session, execute its actions, and deliver its outputs."""
        for action in self.session.handle(event):
            self._execute(action)
        self.deliver()

    def speak(self, text: str, *, replaces: bool = False) -> UtteranceId:
        """Queue a complete utterance."""
        self.handle(AddText(text, replaces))
        utterance_id = self.session.open_utterance
        assert utterance_id is not None
        self.handle(EndUtterance())
        return utterance_id

    def run(self, milliseconds: int) -> None:
        """Advance the time."""
        while milliseconds > 0:
            step = min(milliseconds, self.step_ms)
            milliseconds -= step
            self.now_ms += step
            self.device.play(step)
            self._generate(step)
            self.handle(ClockTick())

    def run_until_idle(self, timeout_ms: int = 60_000) -> None:
        """Advance the time until the session is idle."""
        while True:
            if self.session.idle:
                return
            self.run(self.step_ms)
            timeout_ms -= self.step_ms
            if timeout_ms < 0:
                break
        raise AssertionError("the session never became idle")

    def deliver(self) -> None:
        """Deliver all pending outputs to the device."""
        while (output := self.session.next_output()) is not None:
            self.outputs.append(output)
            if isinstance(output, AudioPacket):
                self.device.receive(output.utterance_id, output.packet.first_sample, output.packet.sample_count)
            elif isinstance(output, Cancelled):
                self.device.buffered.clear()

    def outputs_of_type(self, output_type: type[SessionOutput]) -> list[SessionOutput]:
        """All outputs of this type so far."""
        return [output for output in self.outputs if isinstance(output, output_type)]

    def _execute(self, action: EngineAction) -> None:
        stream = self.streams.get(action.utterance_id)
        match action:
            case OpenStream(utterance_id=utterance_id, ahead_frames=ahead_frames):
                self.streams[utterance_id] = FakeStream(ahead_frames)
                return
        assert stream is not None
        match action:
            case FeedText(text=text):
                stream.text += text
            case EndFeed():
                stream.text_ended = True
            case CancelStream():
                stream.cancelled = True
            case SetAheadFrames(ahead_frames=ahead_frames):
                stream.ahead_frames = ahead_frames
            case ConsumeFrames(frames=frames):
                stream.consumed_frames += frames

    def _generate(self, milliseconds: int) -> None:
        """Generate for the first stream that is ready; a frame takes 80 ms / speed."""
        self._work_ms += self._speed * milliseconds
        while self._work_ms >= FRAME * self._packet_frames:
            ready = [pair for pair in self.streams.items() if self._ready(pair[1])]
            if not ready:
                self._work_ms = 0
                return
            utterance_id, stream = ready[0]
            frames = min(self._packet_frames, len(stream.text) - stream.frames)
            self._work_ms -= FRAME * self._packet_frames
            stream.finished = stream.text_ended and stream.frames + frames == len(stream.text)
            generated = packet(stream.frames * FRAME, frames, last=stream.finished)
            stream.frames += frames
            self.handle(PacketReceived(utterance_id, generated))

    def _ready(self, stream: FakeStream) -> bool:
        if stream.finished or stream.cancelled:
            return False
        known = len(stream.text) - stream.frames
        enough = known >= self._packet_frames or stream.text_ended
        return enough and stream.frames < stream.consumed_frames + max(stream.ahead_frames, self._packet_frames)


def outcomes(world: World, utterance_id: UtteranceId) -> list[PlaybackFinished | InterruptionReport | UtteranceFailed]:
    """All outputs that report how an utterance ended."""
    found: list[PlaybackFinished | InterruptionReport | UtteranceFailed] = []
    for output in world.outputs:
        if isinstance(output, PlaybackFinished | UtteranceFailed) and output.utterance_id == utterance_id:
            found.append(output)
        if isinstance(output, Cancelled):
            found += [report for report in output.reports if report.utterance_id == utterance_id]
    return found
