"""A cancelled request's compute really stops: counted in the loop, turn by turn, and in the engine's own thread.

The control is a client that only stops listening: its compute goes on, and the counters must say so. Owns one rig or
one engine at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from legato.engine.engine import Engine
from legato.engine.sequence import SequenceState
from legato.engine.stream import StreamEvent
from legato.flow import TextLayout
from legato.verify.company import TEXTS, Ask, alike, compare_outcomes
from legato.verify.compare import Comparison, compare_counts, failure, named, worst
from legato.verify.lines import CheckLine, Kind
from legato.verify.rig import Client, Outcome, Rig
from legato.verify.subject import Subject
from legato.verify.tolerance import COUNTS

GROUP = "cancel"
LOOP = "loop, turn by turn"
THREAD = "engine thread"
SLICE = 4
"""Prompt positions a turn, so that a prompt takes several."""
LONG_FRAMES = 100
LONG_TEXT = "One, two, three, four, five, six, seven, eight, nine, ten, eleven, twelve, and so on, and on, and on."


@dataclass(frozen=True, slots=True)
class Moment:
    """When the client cancels. `ended`: all of its text has come. `reached`: what must have been computed by then."""

    name: str
    ended: bool
    reached: str


MOMENTS = (
    Moment("while it waits for a slot", ended=True, reached=""),
    Moment("in its prompt", ended=True, reached="prompt positions"),
    Moment("while it speaks", ended=True, reached="frames decoded"),
    Moment("while it waits for text", ended=False, reached="frames drawn"),
)


def check_cancel(subject: Subject) -> Iterator[CheckLine]:
    """Every moment, the neighbour, the thread, and the control of each."""
    neighbour = Ask(subject.request(300), TEXTS[1])
    alone = solo_in_slices(subject, neighbour)
    tolerance = alike(subject, alone)
    where = subject.at_engine(LOOP, batch=2)
    for moment in MOMENTS:
        rig, victim, beside = start(subject, moment, neighbour)
        stopped = cancelled(rig, victim, moment)
        yield CheckLine(GROUP, "nothing is computed after a cancel", moment.name, where, stopped, COUNTS)
        free = compare_counts(int(rig.balanced), 1, stage="all slots are free (1: yes)")
        yield CheckLine(GROUP, "all slots come back", moment.name, where, free, COUNTS)
        same = compare_outcomes(subject, [rig.outcome(beside)], [alone], tolerance.limit)
        yield CheckLine(GROUP, "the neighbour does not notice", moment.name, where, same, tolerance)
    for moment in MOMENTS[1:3]:
        rig, victim, _ = start(subject, moment, neighbour)
        victim.stream.sink = _nobody
        ran_on = cancelled(rig, victim, moment, tell=False)
        yield CheckLine(GROUP, "only sending stops, nobody cancels", moment.name, where, ran_on, COUNTS, Kind.CONTROL)
    yield from check_thread(subject)


def solo_in_slices(subject: Subject, ask: Ask) -> Outcome:
    """The neighbour alone, its prompt cut into the same slices."""
    rig = Rig(subject, subject.engine_config(streams=2, deterministic=True, prefill_positions=SLICE))
    client = rig.submit(ask.request, ask.text)
    rig.run()
    return rig.outcome(client)


def start(subject: Subject, moment: Moment, neighbour: Ask) -> tuple[Rig, Client, Client]:
    """A rig with a victim that has reached the moment, and a neighbour."""
    queueing = not moment.reached
    config = subject.engine_config(streams=1 if queueing else 2, deterministic=True, prefill_positions=SLICE)
    rig = Rig(subject, config)
    beside = rig.submit(neighbour.request, neighbour.text)
    if queueing:
        rig.turn()
    request = subject.request(301, packets=(1,), layout=TextLayout.STREAMING if not moment.ended else None)
    victim = rig.submit(request, TEXTS[2] if moment.ended else "A somewhat longer one with", ended=moment.ended)
    rig.turn()
    if moment.reached and moment.ended:
        rig.turns_until(lambda: rig.computed(victim)[moment.reached] > 0)
    elif moment.reached:
        rig.turns_until(lambda: any(each.state is SequenceState.WAITING_FOR_TEXT for each in victim.stream.sequences))
    return rig, victim, beside


def cancelled(rig: Rig, victim: Client, moment: Moment, *, tell: bool = True) -> Comparison:
    """Cancel (or, without `tell`, not) and run to the end: what was computed before and after, kind by kind."""
    before = rig.computed(victim)
    if moment.reached and not before[moment.reached]:
        return failure(f"the stream did not get there: no {moment.reached}")
    if tell:
        rig.cancel(victim)
    else:
        rig.end(victim)
    rig.run()
    after = rig.computed(victim)
    return worst([compare_counts(after[kind], before[kind], stage=kind) for kind in before])


def _nobody(_event: StreamEvent) -> None:
    """A client that is not there."""


# --- the engine's thread ---------------------------------------------------------------------------------------------


def check_thread(subject: Subject) -> Iterator[CheckLine]:
    """The engine as a server uses it: cancel through the handle, against a client that only stops reading."""
    where = subject.at_engine(THREAD, batch=2)
    setting = "after 2 packets of a long text; another request runs meanwhile"
    yield CheckLine(GROUP, "frames after a cancel = the other's", setting, where, after_two(subject, True), COUNTS)
    ran_on = after_two(subject, False)
    yield CheckLine(GROUP, "the client only stops reading", setting, where, ran_on, COUNTS, Kind.CONTROL)


def after_two(subject: Subject, cancel: bool) -> Comparison:
    """Frames that the engine drew after two packets of a long stream, against those of the stream beside it."""
    engine = Engine(subject.model, subject.front_end, subject.engine_config(streams=2, deterministic=True), poison=True)
    try:
        long = engine.submit(subject.request(310, packets=(1,), max_frames=LONG_FRAMES))
        long.append_text(LONG_TEXT)
        long.end_text()
        for _ in range(2):
            next(long)
        if cancel:
            long.cancel()
            for _ in long:
                pass
        before = engine.runner.frames_drawn
        other = engine.submit(subject.request(311))
        other.append_text(TEXTS[0])
        other.end_text()
        frames = sum(packet.frames for packet in other)
        drawn = engine.runner.frames_drawn - before
    finally:
        engine.close()
    return named(compare_counts(drawn, frames, stage="frames drawn"), "in all, against those of the other request")
