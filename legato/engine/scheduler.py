"""Scheduler: selects the work of one engine step. A pure function from sequence views to a `Plan`.

Work of a step
--------------
The engine repeats one step: apply client commands, schedule, run the models, decode audio, deliver packets. The input
of the scheduler is a `SequenceView` of each unfinished sequence. It returns sequence ids in four groups:

    admit        waiting sequences that get a KV slot in this step
    prefill      slices of prompts to compute, including prompts admitted in this step
    first_frame  prefilled sequences that sample their first frame
    step         running sequences that advance by one position and sample one frame

The scheduler holds no state and reads no clock. The same views, slots and capacity give the same plan, so each rule
below is tested without a model.

Resources
---------
A sequence needs a KV slot from admission until the talker has generated its last frame. A stream needs a codec slot
from the admission of its first sequence until its last packet. The `max_seq_len` positions of a KV slot are reserved at
admission, so a running sequence cannot run out of memory. A stream that cannot use its slots may be parked (rule 6):
its state is copied, and the slots are released.

A stream is a list of sequences, one for each segment of its text. Only the *head*, the first sequence that has not
ended, generates frames. The sequence after it may be prefilled ahead, so that playback has no gap between segments.

Rules
-----
1. Admission is first come, first served among sequences that can use a slot. A sequence whose prompt lacks text, or
   whose client accepts no frames yet (flow control), is skipped and does not block the sequences after it.
2. Prefilling ahead is optional work, so it must not delay other streams. It takes a KV slot only if enough free slots
   remain for (a) one new stream per free codec slot and (b) each admitted stream that is between two segments.
3. Running sequences are ordered by slack: the time until the client's playback buffer is empty. If more sequences are
   ready than a step has rows, those with the least slack run. Ties are resolved by order of arrival.
4. While a stream of this step is urgent (slack below `URGENT_SLACK_S`), streams with more than `AMPLE_SLACK_S` of
   buffered audio are skipped. A smaller batch makes the step shorter, and the skipped streams do not underrun. The
   sequence with the least slack always runs, so the engine makes progress.
5. Prefill is chunked, so that a long prompt does not stall running streams. The budget is larger while every running
   stream has more than `AMPLE_SLACK_S` of slack.
6. A stream is idle if it cannot use its slots, because its client sends no text or takes no audio. Streams that have
   been idle for `yield_s` are parked if heads wait for slots and none is free: at most one stream for each waiting
   head, longest idle time first. A parked stream that can continue waits for a slot in order of arrival, like a new
   stream. If it is about to underrun and no stream is idle, the stream with the most buffered audio is parked for it,
   provided that it has more than `LENDER_SLACK_S`. A parked stream that has only frames left to decode needs a codec
   slot for one step. It gets a free one at once; otherwise it counts as a waiting head that is about to underrun.

Batch invariance
----------------
Slice boundaries must not depend on other requests, because different slices can change the last bits of the result.
Every prompt is cut at the end of its cacheable prefix and at multiples of the budget, counted from its start and from
the end of the prefix, whether or not the prefix is cached. A slice that does not fit in the remaining budget is
deferred to the next step; it is not shortened. In deterministic mode both budgets are equal, so the slices depend only
on the prompt.
"""

from __future__ import annotations

import math
from collections.abc import Sequence as List
from dataclasses import dataclass

from legato.engine.sequence import HOLDS_SLOT, SequenceState
from legato.types import SequenceId, StreamId

URGENT_SLACK_S = 0.25
"""A stream whose playback buffer empties within this time is urgent."""
AMPLE_SLACK_S = 1.0
"""A stream with more buffered audio than this can be skipped while another one is urgent."""
LENDER_SLACK_S = 3.0
"""A stream with more buffered audio than this can be parked for a stream that is about to underrun. It is larger than
`AMPLE_SLACK_S`, so that two streams that share a slot are swapped every few seconds, not in every step."""


@dataclass(frozen=True, slots=True)
class SequenceView:
    """State of one sequence, as input of the scheduler.

    `head`: all earlier sequences of its stream have ended.
    `prompt_positions`: length of the prompt; 0 until there is enough text to build it.
    `computed_positions`: prompt positions that are in the KV cache.
    `cacheable_prefix_len`: length of the prompt prefix that the prefix cache can hold.
    `prefilled`: the prompt is computed and the first frame is not sampled yet.
    `can_step`: the last frame and its text token, which are the next input, are available.
    `may_generate`: flow control allows another frame.
    `parked`: its stream was admitted before and has lost its slots.
    `slack_s`: seconds until the client underruns; infinite for background streams, negative if it has underrun.
    """

    sequence: SequenceId
    stream: StreamId
    state: SequenceState
    head: bool
    prompt_positions: int
    computed_positions: int
    prefilled: bool
    can_step: bool
    may_generate: bool
    slack_s: float = 0.0
    cacheable_prefix_len: int = 0
    parked: bool = False


@dataclass(frozen=True, slots=True)
class SlotHolder:
    """A stream that holds a codec slot and possibly KV slots.

    `idle_s`: how long it has been unable to use them; None if it is not idle. `slack_s`: as in `SequenceView`.
    """

    stream: StreamId
    idle_s: float | None = None
    slack_s: float = 0.0


@dataclass(frozen=True, slots=True)
class PrefillSlice:
    """Positions `start` to `start + length` of a sequence's prompt."""

    sequence: SequenceId
    start: int
    length: int


@dataclass(frozen=True, slots=True)
class Plan:
    """The work of one step. A prompt that this step completes may sample its first frame in the same step."""

    admit: tuple[SequenceId, ...]
    prefill: tuple[PrefillSlice, ...]
    first_frame: tuple[SequenceId, ...]
    step: tuple[SequenceId, ...]
    park: tuple[StreamId, ...] = ()
    """Streams that release their slots. Waiting sequences are admitted in the next step."""
    wake_in_s: float = math.inf
    """Time until a stream will have been idle for `yield_s`, so that the plan changes without a command."""

    @property
    def idle(self) -> bool:
        """True if the step has no work."""
        return not (self.admit or self.prefill or self.first_frame or self.step or self.park)


@dataclass(frozen=True, slots=True)
class Capacity:
    """Free slots, and the limits of one step.

    `prefill_positions`: maximum prompt positions per step. `urgent_prefill_positions`: the maximum while a running
    stream has less than `AMPLE_SLACK_S` of buffered audio. `max_batch_size`: maximum sequences that step together.
    `yield_s`: how long a stream may be idle before it is parked for a waiting stream. `waiting_to_decode`: parked
    streams that need a codec slot only to decode their last frames, and got none.
    """

    free_kv: int
    free_codec: int
    prefill_positions: int
    urgent_prefill_positions: int
    max_batch_size: int = 64
    yield_s: float = 1.0
    waiting_to_decode: int = 0


def plan_step(views: List[SequenceView], holders: List[SlotHolder], capacity: Capacity) -> Plan:
    """Plan one step. `views` are in order of arrival; `holders` are the streams that hold a codec slot."""
    streams_with_slot = frozenset(holder.stream for holder in holders)
    admit = _admissions(views, streams_with_slot, capacity)
    admitted = frozenset(admit)
    new_sequences = [v for v in views if v.state is SequenceState.WAITING and v.sequence in admitted]
    prefilling = [v for v in views if v.state is SequenceState.PREFILLING or v in new_sequences]
    running = _select_rows([v for v in views if _can_run(v)], capacity.max_batch_size)
    ample_slack = all(v.slack_s > AMPLE_SLACK_S for v in running)
    budget = capacity.prefill_positions if ample_slack else capacity.urgent_prefill_positions
    waiting = [v for v in views if _wants_slot(v) and v.sequence not in admitted]
    park, wake_in_s = _streams_to_park(waiting, holders, capacity)
    return Plan(
        admit=admit,
        prefill=_prefill_slices(prefilling, budget),
        first_frame=tuple(v.sequence for v in running if v.prefilled),
        step=tuple(v.sequence for v in running if v.can_step),
        park=park,
        wake_in_s=wake_in_s,
    )


def _can_run(view: SequenceView) -> bool:
    ready = view.prefilled or view.can_step
    return view.state is SequenceState.RUNNING and view.head and view.may_generate and ready


def _select_rows(ready: List[SequenceView], max_batch_size: int) -> list[SequenceView]:
    """Rules 3 and 4: at most `max_batch_size` of `ready`, least slack first, returned in order of arrival."""
    candidates = sorted(ready, key=lambda v: v.slack_s)[:max_batch_size]
    urgent = any(v.slack_s < URGENT_SLACK_S for v in candidates)
    selected = {v.sequence for v in candidates if not urgent or v.slack_s <= AMPLE_SLACK_S}
    return [v for v in ready if v.sequence in selected]


def _prefill_slices(prefilling: List[SequenceView], budget: int) -> tuple[PrefillSlice, ...]:
    """Rule 5: the next slice of each prompt, heads first, at most `budget` positions in total."""
    slices: list[PrefillSlice] = []
    remaining = budget
    for view in sorted(prefilling, key=lambda v: not v.head):
        in_prefix = view.computed_positions < view.cacheable_prefix_len
        end = view.cacheable_prefix_len if in_prefix else view.prompt_positions
        length = min(budget, end - view.computed_positions)
        # Skip it, do not shorten it: the length of a slice must not depend on the other prompts of this step.
        if 0 < length <= remaining:
            slices.append(PrefillSlice(view.sequence, view.computed_positions, length))
            remaining -= length
    return tuple(slices)


def _admissions(
    views: List[SequenceView], streams_with_slot: frozenset[StreamId], capacity: Capacity
) -> tuple[SequenceId, ...]:
    """Rules 1 and 2: heads that can use a slot first, then sequences to prefill ahead."""
    free_kv, free_codec = capacity.free_kv, capacity.free_codec
    admit: list[SequenceId] = []
    ready = [v for v in views if v.state is SequenceState.WAITING and v.prompt_positions > 0]
    for view in filter(_wants_slot, views):
        needs_codec = view.stream not in streams_with_slot
        if free_kv > 0 and (free_codec > 0 or not needs_codec):
            admit.append(view.sequence)
            free_kv -= 1
            if needs_codec:
                free_codec -= 1
    # A stream between two segments holds a codec slot but no KV slot. Its next segment must find one free.
    holding_kv = {v.stream for v in views if v.state in HOLDS_SLOT}
    just_admitted = {v.stream for v in views if v.sequence in admit}
    between_segments = len(streams_with_slot - holding_kv - just_admitted)
    for view in ready:
        if not view.head and view.stream in streams_with_slot and free_kv > free_codec + between_segments:
            admit.append(view.sequence)
            free_kv -= 1
    return tuple(admit)


def _wants_slot(view: SequenceView) -> bool:
    """True for a head that could use a KV slot immediately.

    Without `may_generate` the stream would hold a slot that it cannot use, while other streams wait for one.
    """
    waiting = view.state is SequenceState.WAITING and view.prompt_positions > 0
    parked = view.state is SequenceState.PARKED and view.can_step
    return view.head and view.may_generate and (waiting or parked)


def _streams_to_park(
    waiting: List[SequenceView], holders: List[SlotHolder], capacity: Capacity
) -> tuple[tuple[StreamId, ...], float]:
    """Rule 6: the streams to park for waiting heads and last frames, and the time until more streams may be parked."""
    yield_s, count = capacity.yield_s, len(waiting) + capacity.waiting_to_decode
    if not count:
        return (), math.inf
    idle = [(each.idle_s, each.stream) for each in holders if each.idle_s is not None]
    idle.sort(key=lambda pair: -pair[0])
    idle_long_enough = [stream for idle_s, stream in idle if idle_s >= yield_s]
    if idle_long_enough:
        return tuple(idle_long_enough[:count]), math.inf
    urgent = bool(capacity.waiting_to_decode) or any(v.parked and v.slack_s < AMPLE_SLACK_S for v in waiting)
    lender = max(holders, key=lambda each: each.slack_s, default=None)
    if urgent and lender is not None and lender.slack_s > LENDER_SLACK_S:
        return (lender.stream,), math.inf
    return (), yield_s - idle[0][0] if idle else math.inf
