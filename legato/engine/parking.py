"""Parking: release the slots of idle streams while other streams wait for a slot, and restore them later.

A stream cannot use its slots while its client sends no text or takes no audio. If another stream waits for a slot and
the holder has been idle for `EngineConfig.yield_s` (see `idleness.py`), the holder is parked: its keys, values and
codec history are copied, and its slots are released. When it can continue, it is admitted like any other stream and the
copies are restored. The result is bit-identical to a run without parking, because the copies are the whole content of
the slots. A sequence without frames is not copied: it returns to WAITING, and its prompt is computed again.

A `Parking` lives as long as the engine and is used only by its thread. Streams and sequences own the copies. The
scheduler selects the streams to park.
"""

from __future__ import annotations

from collections.abc import Iterable

from legato.engine.context import EngineContext
from legato.engine.scheduler import SlotHolder
from legato.engine.sequence import HOLDS_SLOT, SequenceEvent, SequenceState
from legato.engine.stats import EngineStats
from legato.engine.stream import Stream


class Parking:
    """Copies and restores the slots of streams. The copies may take at most `limit_bytes`."""

    def __init__(self, context: EngineContext, stats: EngineStats, limit_bytes: int) -> None:
        self._context = context
        self._stats = stats
        self._limit_bytes = limit_bytes
        self._frame_s = context.codec.backend.decoder.frame_samples / context.sample_rate_hz

    def holders(self, streams: Iterable[Stream]) -> list[SlotHolder]:
        """The streams that hold a codec slot, with the idle time of each."""
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
        """Copy and release the slots of a stream. Returns False if all copies together would exceed the limit."""
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
        """Lease the codec slot of an admitted stream. A parked stream continues from its own history."""
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
