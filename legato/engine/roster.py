"""Who is in the engine: the streams that are not over, and the ways in which one leaves.

Owns the streams from submission to their last packet or error, and sees to it that whatever they hold goes back: talker
slots with the end of a sequence, the codec slot with the end of the stream. Computes nothing.
"""

from __future__ import annotations

from legato.engine.codec_pool import CodecPool
from legato.engine.packets import empty_last_packet
from legato.engine.runner import Runner
from legato.engine.sequence import Sequence, SequenceEvent
from legato.engine.stream import Stream
from legato.errors import LegatoError, StateError
from legato.flow import FinishReason, SequenceId, StreamId


class Roster:
    """The streams under way."""

    def __init__(self, runner: Runner, codec_pool: CodecPool, sample_rate_hz: int) -> None:
        self._runner = runner
        self._codec_pool = codec_pool
        self._sample_rate_hz = sample_rate_hz
        self._streams: dict[StreamId, Stream] = {}

    def __len__(self) -> int:
        return len(self._streams)

    def add(self, stream: Stream) -> None:
        """A stream that was just submitted."""
        self._streams[stream.id] = stream

    def streams(self) -> list[Stream]:
        """All of them, in the order of arrival; a copy, so that one may leave while it is walked."""
        return list(self._streams.values())

    def of(self, stream: StreamId) -> list[Stream]:
        """The stream with this id, or nothing if it is over."""
        return [self._streams[stream]] if stream in self._streams else []

    def find(self, sequence_id: SequenceId) -> tuple[Stream, Sequence]:
        """A sequence and its stream."""
        for stream in self._streams.values():
            for sequence in stream.sequences:
                if sequence.id == sequence_id:
                    return stream, sequence
        raise StateError(f"sequence {sequence_id} belongs to no stream")

    def end(self, sequence: Sequence, reason: FinishReason) -> None:
        """The talker is done with a sequence: its slot is free in this very turn, its frames still drain."""
        sequence.take(SequenceEvent.END)
        sequence.reasons.append(reason)
        self._runner.unseat(sequence)

    def drop_rest(self, stream: Stream, last: Sequence, reason: FinishReason) -> None:
        """The caller's limit is reached: later segments are not spoken, and text that still comes is not either."""
        stream.intake.shut()
        for sequence in stream.sequences[last.number + 1 :]:
            sequence.take(SequenceEvent.CANCEL)
            sequence.undecoded.clear()
            sequence.reasons.append(reason)
            self._runner.unseat(sequence)

    def fail(self, stream: Stream, error: LegatoError) -> None:
        """The stream ends with an error; its neighbours do not notice."""
        self._stop(stream, SequenceEvent.FAIL, FinishReason.FAILED)
        stream.sink(error)

    def cancel(self, stream: Stream) -> None:
        """The stream ends at once with an empty last packet."""
        self._stop(stream, SequenceEvent.CANCEL, FinishReason.CANCELLED)
        self.say_last(stream, FinishReason.CANCELLED)

    def say_last(self, stream: Stream, reason: FinishReason) -> None:
        """The end became known after the last full packet had gone: the last flag travels without samples."""
        stream.closed = True
        stream.sink(empty_last_packet(stream.id, stream.samples, self._sample_rate_hz, reason))

    def forget(self, stream: Stream) -> None:
        """Give the codec slot back."""
        stream.closed = True
        for lease in stream.leases:
            self._codec_pool.release(lease)
        stream.leases.clear()
        self._streams.pop(stream.id, None)

    def _stop(self, stream: Stream, event: SequenceEvent, reason: FinishReason) -> None:
        for sequence in stream.stop(event, reason):
            self._runner.unseat(sequence)
        self.forget(stream)
