"""Parking: take the slots of streams that cannot use them, for streams that wait, and give them back later.

A stream holds slots that it cannot use while its client sends no text or takes no audio. When another stream waits for
a slot and the holder has been idle for `EngineConfig.yield_s` (see `idleness.py`), the holder is parked: its keys,
values and codec history are copied, and its slots are released. When it can go on, it is admitted like any other stream
and the copies are put back. The result is bit-identical to a run without parking, because slots hold nothing else.

A sequence without frames is not copied. It goes back to WAITING, and its prompt is computed again.

A `Parking` lives as long as the engine and is used by its thread only. The copies belong to the streams and sequences.
The scheduler decides which streams are parked.
"""

from __future__ import annotations

from collections.abc import Iterable

from legato.engine.context import EngineContext
from legato.engine.scheduler import SlotHolder
from legato.engine.sequence import HOLDS_SLOT, SequenceEvent, SequenceState
from legato.engine.stats import EngineStats
from legato.engine.stream import Stream


class Parking:
    """Copies and restores the slots of streams, within `limit_bytes` of copies."""

    def __init__(self, context: EngineContext, stats: EngineStats, limit_bytes: int) -> None:
        self._context = context
        self._stats = stats
        self._limit_bytes = limit_bytes
        self._frame_s = context.codec.backend.decoder.frame_samples / context.sample_rate_hz

    def holders(self, streams: Iterable[Stream]) -> list[SlotHolder]:
        """The streams that hold a codec slot, and how long each has been unable to use its slots."""
        context, now_s = self._context, self._context.clock()
        holders: list[SlotHolder] = []
        for stream in streams:
            if stream.codec_lease is None:
                continue
            stream.idleness.update(
                now_s,
                stream.frames * self._frame_s,
                waits_for_text=waits_for_text(stream),
                may_generate=stream.may_generate(),
                may_resume=stream.may_resume(),
                limit_s=context.yield_s,
            )
            idle_s = stream.idleness.seconds if stream.idleness.idle else None
            holders.append(SlotHolder(stream.id, idle_s=idle_s, slack_s=stream.slack_s(now_s)))
        return holders

    def park(self, stream: Stream, others: Iterable[Stream]) -> bool:
        """Release the slots of a stream. False if the copies of all parked streams would exceed the limit."""
        lease, runner = stream.codec_lease, self._context.runner
        if lease is None:
            return False
        holding = [sequence for sequence in stream.active() if sequence.state in HOLDS_SLOT]
        needed = self._context.codec.pool.slot_bytes + sum(
            runner.slot_bytes(each.slot.computed_positions) for each in holding if each.frames
        )
        if needed + sum(each.parked_bytes for each in others) > self._limit_bytes:
            return False
        for sequence in holding:
            if sequence.frames:
                sequence.apply(SequenceEvent.PARK)
                runner.park_sequence(sequence)
            else:
                sequence.apply(SequenceEvent.REQUEUE)
                runner.remove_sequence(sequence)
        stream.parked_history = self._context.codec.pool.suspend(lease)
        stream.parked_bytes = needed
        stream.codec_lease = None
        stream.timing.parked(self._context.clock())
        self._stats.add_parked()
        return True

    def lease(self, stream: Stream) -> None:
        """Lease the codec slot of an admitted stream, from its own history if it was parked."""
        pool, voice, now_s = self._context.codec.pool, stream.request.voice, self._context.clock()
        if stream.parked_history is not None:
            stream.codec_lease = pool.acquire(stream.id, stream.parked_history)
            stream.parked_history, stream.parked_bytes = None, 0
            stream.timing.resumed(now_s)
        else:
            stream.codec_lease = pool.acquire(stream.id, voice.history if voice is not None else None)
        stream.idleness.restart(now_s, stream.frames * self._frame_s)


def waits_for_text(stream: Stream) -> bool:
    """True if a stream cannot generate a frame before its client sends text."""
    head = stream.head()
    if head is None:
        return not stream.intake.ended and not stream.intake.has_work
    return head.state is SequenceState.WAITING_FOR_TEXT or (head.state is SequenceState.WAITING and head.prompt is None)
