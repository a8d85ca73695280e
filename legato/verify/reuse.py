"""A slot that was used, cancelled and leased again leaves no trace: against the same request in a fresh engine.

Owns one rig at a time, with a single talker slot and a single codec slot, so that reuse is certain.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from legato.engine.codec_pool import CodecPool
from legato.engine.leases import CodecLease
from legato.engine.sequence import Sequence as TalkerSequence
from legato.engine.stream import StreamRequest
from legato.flow import StreamId
from legato.models.codec.state import CodecHistory, CodecStatePool
from legato.verify.company import TEXTS, Ask, alike, compare_outcomes
from legato.verify.lines import CheckLine, Kind
from legato.verify.rig import SOUND, CountingRunner, Outcome, Parts, Rig
from legato.verify.subject import Subject

GROUP = "slot reuse after cancel"
ROUNDS = 3


def check_reuse(subject: Subject) -> Iterator[CheckLine]:
    """Both modes; then a history and a position that outlive their request."""
    ask = Ask(subject.request(400), TEXTS[1])
    setting = f"{ROUNDS} streams cancelled in different turns, then the request, in one slot"
    for deterministic in (False, True):
        path = "deterministic mode" if deterministic else "default mode"
        where = subject.at_engine(f"{path}, one slot", batch=1)
        fresh = after_cancels(subject, ask, 0, deterministic)
        tolerance = alike(subject, fresh)
        found = compare_outcomes(
            subject, [after_cancels(subject, ask, ROUNDS, deterministic)], [fresh], tolerance.limit
        )
        yield CheckLine(GROUP, "used slot = fresh slot", setting, where, found, tolerance)
    faults = {
        "codec history of the cancelled stream kept": Parts(codec_pool=KeepingCodecPool),
        "positions counted on from the cancelled stream": Parts(runner=LateRunner),
    }
    for name, parts in faults.items():
        broken = after_cancels(subject, ask, ROUNDS, True, parts)
        found = compare_outcomes(subject, [broken], [fresh], tolerance.limit)
        yield CheckLine(GROUP, name, setting, where, found, tolerance, Kind.CONTROL)


def after_cancels(subject: Subject, ask: Ask, rounds: int, deterministic: bool, parts: Parts = SOUND) -> Outcome:
    """The request in a slot in which `rounds` other streams were cancelled, each after a few turns more."""
    rig = Rig(subject, subject.engine_config(streams=1, deterministic=deterministic), parts)
    for number in range(rounds):
        victim = rig.submit(_victim(subject, number), TEXTS[2])
        for _ in range(3 + 2 * number):
            rig.turn()
        rig.cancel(victim)
    client = rig.submit(ask.request, ask.text)
    rig.run()
    return rig.outcome(client)


def _victim(subject: Subject, number: int) -> StreamRequest:
    return subject.request(410 + number, packets=(1,))


class KeepingCodecPool(CodecPool):
    """Starts every stream from the history that was stored last."""

    def __init__(self, storage: CodecStatePool) -> None:
        super().__init__(storage)
        self._last: list[CodecHistory] = []

    def acquire(self, stream: StreamId, start: Sequence[CodecHistory]) -> CodecLease:
        return super().acquire(stream, self._last or start)

    def scatter(self, leases: Sequence[CodecLease], history: CodecHistory) -> None:
        self._last = [history.select([0])]
        super().scatter(leases, history)


class LateRunner(CountingRunner):
    """In a slot that had a sequence before, speaks on from one position too late."""

    def step(self, sequences: Sequence[TalkerSequence]) -> None:
        for sequence in sequences:
            if sequence.seat.lease.epoch and sequence.frames == 1:
                sequence.seat.positions += 1
        super().step(sequences)
