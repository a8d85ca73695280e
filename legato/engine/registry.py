"""Registry of active streams: add, deliver, finish, cancel, fail, remove.

It holds each stream from submission to its last packet or error. It releases a KV slot when its sequence ends, and the
codec slot when the stream ends. Used only by the engine thread.
"""

from __future__ import annotations

import logging

from legato.engine.codec_state import CodecPool
from legato.engine.flow_control import FlowMode
from legato.engine.model_runner import ModelRunner
from legato.engine.sequence import Sequence, SequenceEvent
from legato.engine.stats import EngineStats
from legato.engine.stream import Stream, StreamEvent
from legato.errors import GenerationError, LegatoError
from legato.types import FinishReason, Packet, StreamId

_log = logging.getLogger(__name__)


class StreamRegistry:
    """The active streams of an engine."""

    def __init__(
        self, runner: ModelRunner, codec_pool: CodecPool, sample_rate_hz: int, stats: EngineStats | None = None
    ) -> None:
        self._runner = runner
        self._codec_pool = codec_pool
        self._sample_rate_hz = sample_rate_hz
        self.stats = stats or EngineStats()
        self._streams: dict[StreamId, Stream] = {}

    def __len__(self) -> int:
        return len(self._streams)

    def add(self, stream: Stream) -> None:
        """Add a submitted stream."""
        self._streams[stream.id] = stream

    def streams(self) -> list[Stream]:
        """All streams in order of arrival. A copy, so that streams can be removed while iterating."""
        return list(self._streams.values())

    def get(self, stream: StreamId) -> Stream | None:
        """The stream with this id, None if it has ended."""
        return self._streams.get(stream)

    def end_sequence(self, sequence: Sequence, reason: FinishReason) -> None:
        """End generation of a sequence and release its KV slot. Its frames are still decoded."""
        sequence.apply(SequenceEvent.END)
        sequence.finish_reason = reason
        self._runner.remove_sequence(sequence)

    def drop_later_sequences(self, stream: Stream, last: Sequence, reason: FinishReason) -> None:
        """Drop the sequences after `last` and the remaining text. Used when the caller's frame limit is reached."""
        stream.intake.discard()
        for sequence in stream.sequences[last.number + 1 :]:
            sequence.apply(SequenceEvent.CANCEL)
            sequence.undecoded.clear()
            sequence.finish_reason = reason
            self._runner.remove_sequence(sequence)

    def fail(self, stream: Stream, error: Exception) -> None:
        """End a stream with an error. Other streams are not affected."""
        reported = error if isinstance(error, LegatoError) else _wrap(error)
        self._stop(stream, SequenceEvent.FAIL, FinishReason.FAILED)
        self._record_outcome(stream, FinishReason.FAILED.value, reported.code)
        self._send(stream, reported)

    def fail_all(self, error: LegatoError) -> None:
        """End all streams with an error, even if releasing their slots fails."""
        for stream in self.streams():
            try:
                self.fail(stream, error)
            except Exception:  # boundary: a slot that cannot be released must not leave a client waiting
                _log.exception("could not release the slots of stream %d", stream.id)
                self._streams.pop(stream.id, None)
                self._send(stream, error)

    def cancel(self, stream: Stream) -> None:
        """End a stream immediately with an empty last packet."""
        self._stop(stream, SequenceEvent.CANCEL, FinishReason.CANCELLED)
        self.deliver_last(stream, FinishReason.CANCELLED)

    def deliver_last(self, stream: Stream, reason: FinishReason) -> None:
        """Deliver an empty last packet, for a stream whose end was not known when its last samples were sent."""
        packet = Packet(
            stream=stream.id,
            first_sample=stream.samples,
            frames=0,
            sample_rate_hz=self._sample_rate_hz,
            float32_le=b"",
            last=True,
            finish_reason=reason,
        )
        self.deliver(stream, packet)

    def deliver(self, stream: Stream, packet: Packet) -> None:
        """Pass a packet to the client. If the client's callback raises, its stream fails."""
        stream.closed = packet.last
        if packet.last:
            assert packet.finish_reason is not None, "the last packet carries the finish reason"
            self._record_outcome(stream, packet.finish_reason.value, "")
        if not self._send(stream, packet) and not packet.last:
            self.fail(stream, GenerationError("the callback that receives the packets raised an error; see the log"))

    def remove(self, stream: Stream) -> None:
        """Remove a stream and release its codec slot."""
        stream.closed = True
        self._streams.pop(stream.id, None)
        if stream.codec_lease is not None:
            self._codec_pool.release(stream.codec_lease)
            stream.codec_lease = None
        stream.parked_history, stream.parked_bytes = None, 0

    def _stop(self, stream: Stream, event: SequenceEvent, reason: FinishReason) -> None:
        stream.intake.discard()
        for sequence in stream.stop(event, reason):
            self._runner.remove_sequence(sequence)
        self.remove(stream)

    def _send(self, stream: Stream, event: StreamEvent) -> bool:
        try:
            stream.on_event(event)
        except Exception:  # boundary: the callback is the client's code
            _log.exception("the callback of stream %d raised an error", stream.id)
            return False
        return True

    def _record_outcome(self, stream: Stream, outcome: str, error: str) -> None:
        mode = stream.flow_control.mode
        live, paced = mode is not FlowMode.BACKGROUND, mode is FlowMode.PACED
        self.stats.add_stream(stream.timing, outcome, error, live=live, paced=paced)


def _wrap(error: Exception) -> GenerationError:
    wrapped = GenerationError(f"{type(error).__name__}: {error}")
    wrapped.__cause__ = error
    return wrapped
