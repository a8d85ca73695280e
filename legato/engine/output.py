"""Output stage of an engine step: group frames into windows, decode them, check the audio, and deliver packets.

A window is the run of frames of one stream that is decoded in one codec call; it yields one or several packets. The
sizes come from `packetizer`. This module works on the streams of the registry and holds no state.
"""

from __future__ import annotations

import itertools
from functools import partial

import numpy as np
import numpy.typing as npt

from legato.engine.batches import batches
from legato.engine.codec_runner import Window
from legato.engine.context import EngineContext
from legato.engine.flow_control import FlowMode
from legato.engine.leases import CodecLease
from legato.engine.pacing import StepTimer, first_packet_frames, must_send
from legato.engine.packetizer import WindowMode
from legato.engine.registry import StreamRegistry
from legato.engine.scheduler import AMPLE_SLACK_S
from legato.engine.sequence import SequenceState
from legato.engine.stats import Mark, StepPhase
from legato.engine.stream import Stream
from legato.errors import LegatoError, NonFiniteError
from legato.types import FinishReason, Frame, Packet

Samples = npt.NDArray[np.float32]
_WindowPackets = tuple[Stream, CodecLease, list[tuple[Frame, ...]]]
"""A stream, its codec lease, and the frames of each packet in its window."""


class OutputStage:
    """The second half of an engine step."""

    def __init__(self, context: EngineContext, registry: StreamRegistry) -> None:
        self._context = context
        self._registry = registry
        self._timer = StepTimer()

    def add_step(self, seconds: float) -> None:
        """Tell the time that talker and code predictor took in this step. A step without frames is not measured."""
        self._timer.add_step(seconds)

    def decode(self, step_s: float) -> bool:
        """Decode at most one window of each stream and deliver its packets, streams with the least slack first.

        `step_s`: duration of the previous step. Returns False if there was nothing to decode.
        """
        now_s, codec = self._context.clock(), self._context.codec
        streams = sorted(self._registry.streams(), key=lambda each: each.slack_s(now_s))
        # Wide windows help only a single stream. Windows of several streams are decoded as one batch, where a long
        # codec call would delay the other streams.
        wide = self._context.adaptive and len(streams) == 1 and streams[0].slack_s(now_s) > AMPLE_SLACK_S
        active = sum(stream.codec_lease is not None for stream in streams)
        windows: list[_WindowPackets] = []
        for stream in streams:
            if stream.codec_lease is None:
                continue
            first_frames = 0 if stream.packets else self._first_frames(stream, active)
            mode = self._window_mode(stream, step_s, wide=wide, streams=active)
            packets = stream.pop_window(mode, first_frames)
            if packets:
                stream.timing.mark(Mark.FIRST_WINDOW, now_s)
                windows.append((stream, stream.codec_lease, packets))
        for batch in batches(windows, codec.rows_per_call):
            inputs = [Window(lease, tuple(itertools.chain(*packets))) for _, lease, packets in batch]
            call = partial(codec.decode, inputs)
            started_s = self._context.clock()
            decoded = self._context.timed(self._registry.stats, StepPhase.CODEC, len(batch), call)
            frames = sum(len(window.frames) for window in inputs)
            self._timer.add_window(frames, self._context.clock() - started_s)
            for (stream, _, packets), samples in zip(batch, decoded, strict=True):
                self._emit_window(stream, packets, samples)
        return bool(windows)

    def _first_frames(self, stream: Stream, streams: int) -> int:
        """Frames of the first packet of a gapless stream; 0 leaves the choice to its policy.

        A stream that cannot play without a gap anyway starts at once.
        """
        times = self._timer.times()
        if not (stream.request.packets.gapless and self._context.adaptive) or times is None:
            return 0
        frames = first_packet_frames(times, streams=streams, frame_audio_s=self._context.frame_audio_s) or 0
        control = stream.flow_control
        # No more frames are generated than the client may have ahead, so a longer packet would never be complete.
        return min(frames, control.ahead_frames) if control.mode is FlowMode.PACED else frames

    def _window_mode(self, stream: Stream, step_s: float, *, wide: bool, streams: int) -> WindowMode:
        """The mode of the stream's next window. `wide`: it is the only stream and has enough buffered audio.

        `streams`: number of streams with slots.
        """
        if wide:
            return WindowMode.WAIT_FOR_WIDE if stream.next_step_adds_frame() else WindowMode.WIDE
        times = self._timer.times()
        if self._context.adaptive and stream.request.packets.gapless and times is not None:
            slack_s, available = stream.slack_s(self._context.clock()), stream.ready_frames()
            # After an underrun, larger windows catch up sooner.
            if slack_s > 0.0 and must_send(times, available=available, slack_s=slack_s, streams=streams):
                return WindowMode.FLUSH
        if self._context.adaptive and stream.flow_control.mode is FlowMode.PACED:
            head = stream.head()
            waits_for_text = head is not None and head.state is SequenceState.WAITING_FOR_TEXT
            # Flush if no frame can be generated before more text arrives, or if the buffer would be empty before the
            # next step ends.
            if waits_for_text or 0.0 < stream.slack_s(self._context.clock()) < step_s:
                return WindowMode.FLUSH
        return WindowMode.SINGLE

    def _emit_window(self, stream: Stream, packets: list[tuple[Frame, ...]], samples: Samples) -> None:
        """Deliver the packets of a window. The last packet of the stream carries the finish reason."""
        frame_samples, start = len(samples) // sum(map(len, packets)), 0
        for number, frames in enumerate(packets):
            end = start + len(frames) * frame_samples
            final = number == len(packets) - 1
            if not stream.closed:  # the watchdog or the client's callback may end the stream between two packets
                self._emit_packet(stream, len(frames), samples[start:end], final=final)
            start = end

    def _emit_packet(self, stream: Stream, frames: int, samples: Samples, *, final: bool) -> None:
        try:
            self._check_silence(stream, samples, frames)
            last = final and stream.generation_over and not stream.ready_frames()
            packet = make_packet(
                stream,
                samples,
                frames=frames,
                sample_rate_hz=self._context.sample_rate_hz,
                finish_reason=stream.finish_reason() if last else None,
            )
        except LegatoError as error:
            self._registry.fail(stream, error)
            return
        audio_s = packet.sample_count / self._context.sample_rate_hz
        stream.timing.packet(self._context.clock(), audio_s, client_waiting=stream.client_waiting)
        stream.samples += packet.sample_count
        stream.sent += frames
        stream.packets += 1
        self._registry.stats.add_frames(frames)
        self._registry.deliver(stream, packet)

    def _check_silence(self, stream: Stream, samples: Samples, frames: int) -> None:
        """Pass the level of each frame to the watchdog. If it returns a finish reason, end the generating sequence."""
        levels = np.sqrt(np.mean(np.square(samples.reshape(frames, -1)), axis=1))
        for level in levels.tolist():
            reason = stream.watchdog.observe_level(level)
            head = stream.head()
            if reason is not None and head is not None and head.state is SequenceState.RUNNING:
                self._registry.end_sequence(head, reason)


def check_finite(samples: Samples, *, first_sample: int) -> None:
    """Raise `NonFiniteError` for NaN or infinity. This fails the stream, and the samples are not sent."""
    bad = np.flatnonzero(~np.isfinite(samples))
    if bad.size:
        index = int(bad[0])
        raise NonFiniteError(
            f"the codec produced {bad.size} samples that are not finite, the first at sample {first_sample + index} "
            f"({samples[index]}); try the codec in fp32"
        )


def make_packet(
    stream: Stream, samples: Samples, *, frames: int, sample_rate_hz: int, finish_reason: FinishReason | None
) -> Packet:
    """Build the next packet of `stream` from `samples` [n] in [-1, 1]. `finish_reason`: only for the last packet."""
    check_finite(samples, first_sample=stream.samples)
    return Packet(
        stream=stream.id,
        first_sample=stream.samples,
        frames=frames,
        sample_rate_hz=sample_rate_hz,
        float32_le=np.ascontiguousarray(samples, dtype="<f4").tobytes(),
        last=finish_reason is not None,
        finish_reason=finish_reason,
    )
