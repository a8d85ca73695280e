"""What one turn does, decided: views of the sequences in, a `Plan` out. Pure; knows no tensor and changes nothing.

Rules: running streams step in the order in which their listeners would run dry. A stream is admitted in the order of
arrival when it has enough text, a talker slot and a codec slot. The next segment of a stream is prefilled ahead only
with a slot that no other stream, present or still to be admitted, could need. Prefill is cut into slices, so that the
streams that speak keep their pace.
"""

from __future__ import annotations

from collections.abc import Sequence as List
from dataclasses import dataclass

from legato.engine.sequence import SEATED, SequenceState
from legato.flow import SequenceId, StreamId

HURRY_S = 0.25
"""A listener who runs dry within this time is in a hurry..."""
EASY_S = 1.0
"""...and then streams with more than this in hand let him go first."""


@dataclass(frozen=True, slots=True)
class SequenceView:
    """What the scheduler sees of a sequence. `head`: all earlier sequences of its stream have ended.

    `prompt_positions`: length of its prompt, 0 while it lacks text. `positions`: how many of them are computed.
    `shared_positions`: how many of them, from the first on, other requests may share.
    `primed`: its prompt is computed and its first frame not drawn. `can_step`: it has a frame to feed and the text that
    goes with it. `wanted`: the client wants more frames. `slack_s`: until its listener runs dry; infinite where nobody
    listens live, below 0 where he waits already.
    """

    sequence: SequenceId
    stream: StreamId
    state: SequenceState
    head: bool
    prompt_positions: int
    positions: int
    primed: bool
    can_step: bool
    wanted: bool
    slack_s: float = 0.0
    shared_positions: int = 0


@dataclass(frozen=True, slots=True)
class PrefillSlice:
    """Positions `start` to `start + length` of a sequence's prompt."""

    sequence: SequenceId
    start: int
    length: int


@dataclass(frozen=True, slots=True)
class Plan:
    """One turn: who is seated, which prompt positions are computed, who draws its first frame, who steps.

    A prompt that is completed in this turn may draw in this turn, too.
    """

    admit: tuple[SequenceId, ...]
    prefill: tuple[PrefillSlice, ...]
    begin: tuple[SequenceId, ...]
    step: tuple[SequenceId, ...]

    @property
    def idle(self) -> bool:
        """True when the turn would do nothing."""
        return not (self.admit or self.prefill or self.begin or self.step)


@dataclass(frozen=True, slots=True)
class Capacity:
    """Free talker and codec slots now, and what one turn computes: prefill positions, and rows that step.

    `prefill_beside`: prefill positions beside a listener who has less than `EASY_S` in hand.
    """

    free_kv: int
    free_codec: int
    prefill_positions: int
    prefill_beside: int
    rows: int = 64


def plan_turn(views: List[SequenceView], seated_streams: frozenset[StreamId], capacity: Capacity) -> Plan:
    """Decide one turn. `views` are in the order of arrival; `seated_streams` hold a codec slot already."""
    admit = _admissions(views, seated_streams, capacity)
    admitted = frozenset(admit)
    prefilling = [v for v in views if v.state is SequenceState.PREFILLING or v.sequence in admitted]
    running = _in_turn([v for v in views if _can_run(v)], capacity.rows)
    easy = all(v.slack_s > EASY_S for v in running)
    return Plan(
        admit=admit,
        prefill=_slices(prefilling, capacity.prefill_positions if easy else capacity.prefill_beside),
        begin=tuple(v.sequence for v in running if v.primed),
        step=tuple(v.sequence for v in running if v.can_step),
    )


def _can_run(view: SequenceView) -> bool:
    return view.state is SequenceState.RUNNING and view.head and view.wanted and (view.primed or view.can_step)


def _in_turn(ready: List[SequenceView], rows: int) -> list[SequenceView]:
    """The `rows` of `ready` that are nearest to running dry, in the order of arrival.

    While one of them is in a hurry, those with plenty in hand sit the turn out: they lose nothing.
    """
    nearest = sorted(ready, key=lambda v: v.slack_s)[:rows]
    hurry = any(v.slack_s < HURRY_S for v in nearest)
    chosen = {v.sequence for v in nearest if not hurry or v.slack_s <= EASY_S}
    return [v for v in ready if v.sequence in chosen]


def _slices(prefilling: List[SequenceView], most: int) -> tuple[PrefillSlice, ...]:
    """The next slice of each prompt, heads first, `most` positions in all.

    A prompt is always cut where its shared positions end, and from there and from its start at multiples of `most`,
    whoever else is prefilled and whether or not those positions were kept: with one `most` for every turn, as in
    deterministic mode, its slices are the same in any company.
    """
    slices: list[PrefillSlice] = []
    left = most
    for view in sorted(prefilling, key=lambda v: not v.head):
        shared = view.positions < view.shared_positions
        length = min(most, (view.shared_positions if shared else view.prompt_positions) - view.positions)
        if 0 < length <= left:
            slices.append(PrefillSlice(view.sequence, view.positions, length))
            left -= length
    return tuple(slices)


def _admissions(
    views: List[SequenceView], seated_streams: frozenset[StreamId], capacity: Capacity
) -> tuple[SequenceId, ...]:
    free_kv, free_codec = capacity.free_kv, capacity.free_codec
    admit: list[SequenceId] = []
    ready = [v for v in views if v.state is SequenceState.WAITING and v.prompt_positions > 0]
    for view in ready:
        new_stream = view.stream not in seated_streams
        if view.head and free_kv > 0 and (free_codec > 0 or not new_stream):
            admit.append(view.sequence)
            free_kv -= 1
            free_codec -= new_stream
    speaking = {v.stream for v in views if v.state in SEATED}
    between_segments = len(seated_streams - speaking - {v.stream for v in ready if v.sequence in admit})
    for view in ready:
        if not view.head and view.stream in seated_streams and free_kv > free_codec + between_segments:
            admit.append(view.sequence)
            free_kv -= 1
    return tuple(admit)
