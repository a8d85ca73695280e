"""Who is in the engine: the streams that are not over, and the ways in which one leaves.

Owns the streams from submission to their last packet or error, and sees to it that whatever they hold goes back: talker
slots with the end of a sequence, the codec slot with the end of the stream. Computes nothing.
"""

from __future__ import annotations

import logging

from legato.engine.codec_pool import CodecPool
from legato.engine.demand import Pace
from legato.engine.packets import empty_last_packet
from legato.engine.runner import Runner
from legato.engine.sequence import Sequence, SequenceEvent
from legato.engine.stats import EngineStats
from legato.engine.stream import Stream, StreamEvent
from legato.errors import GenerationError, LegatoError
from legato.flow import FinishReason, Packet, StreamId

_log = logging.getLogger(__name__)


class Roster:
    """The streams under way."""

    def __init__(
        self, runner: Runner, codec_pool: CodecPool, sample_rate_hz: int, stats: EngineStats | None = None
    ) -> None:
        self._runner = runner
        self._codec_pool = codec_pool
        self._sample_rate_hz = sample_rate_hz
        self.stats = stats or EngineStats()
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

    def fail(self, stream: Stream, error: Exception) -> None:
        """The stream ends with an error; its neighbours do not notice."""
        known = error if isinstance(error, LegatoError) else _wrapped(error)
        self._stop(stream, SequenceEvent.FAIL, FinishReason.FAILED)
        self._count(stream, FinishReason.FAILED.value, known.code)
        self._hand(stream, known)

    def fail_all(self, error: LegatoError) -> None:
        """Everybody ends with an error, whatever state the machinery is in."""
        for stream in self.streams():
            try:
                self.fail(stream, error)
            except Exception:  # boundary: slots that cannot be given back must not keep a client waiting for ever
                _log.exception("stream %d could not give back what it holds", stream.id)
                self._streams.pop(stream.id, None)
                self._hand(stream, error)

    def cancel(self, stream: Stream) -> None:
        """The stream ends at once with an empty last packet."""
        self._stop(stream, SequenceEvent.CANCEL, FinishReason.CANCELLED)
        self.say_last(stream, FinishReason.CANCELLED)

    def say_last(self, stream: Stream, reason: FinishReason) -> None:
        """The end became known after the last full packet had gone: the last flag travels without samples."""
        self.hand(stream, empty_last_packet(stream.id, stream.samples, self._sample_rate_hz, reason))

    def hand(self, stream: Stream, packet: Packet) -> None:
        """Hand a packet over. A client whose sink breaks loses its stream; nobody else does."""
        stream.closed = packet.last
        if packet.last:
            assert packet.finish_reason is not None, "the last packet carries the finish reason"
            self._count(stream, packet.finish_reason.value, "")
        if not self._hand(stream, packet) and not packet.last:
            self.fail(stream, GenerationError("the receiver of the packets raised an error; see the log"))

    def forget(self, stream: Stream) -> None:
        """Give the codec slot back."""
        stream.closed = True
        self._streams.pop(stream.id, None)
        for lease in stream.leases:
            self._codec_pool.release(lease)
        stream.leases.clear()

    def _stop(self, stream: Stream, event: SequenceEvent, reason: FinishReason) -> None:
        stream.intake.shut()
        for sequence in stream.stop(event, reason):
            self._runner.unseat(sequence)
        self.forget(stream)

    def _hand(self, stream: Stream, event: StreamEvent) -> bool:
        try:
            stream.sink(event)
        except Exception:  # boundary: a sink is the client's code
            _log.exception("the receiver of stream %d broke", stream.id)
            return False
        return True

    def _count(self, stream: Stream, outcome: str, error: str) -> None:
        pace = stream.demand.pace
        live, paced = pace is not Pace.BACKGROUND, pace is Pace.PACED
        self.stats.stream_over(stream.timing, outcome, error, live=live, paced=paced)


def _wrapped(error: Exception) -> GenerationError:
    wrapped = GenerationError(f"{type(error).__name__}: {error}")
    wrapped.__cause__ = error
    return wrapped
