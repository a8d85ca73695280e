"""The scheduler as a pure function: views in, plan out."""

from __future__ import annotations

from dataclasses import replace
from math import inf

from hypothesis import given
from hypothesis import strategies as st

from legato.engine.scheduler import AMPLE_SLACK_S, LENDER_SLACK_S, Capacity, SequenceView, SlotHolder, plan_step
from legato.engine.sequence import SequenceState
from legato.types import SequenceId, StreamId

CAPACITY = Capacity(free_kv=8, free_codec=8, prefill_positions=512, urgent_prefill_positions=512)


def view(
    sequence: int,
    *,
    stream: int = -1,
    state: SequenceState = SequenceState.WAITING,
    head: bool = True,
    prompt: int = 10,
    positions: int = 0,
    prefilled: bool = False,
    can_step: bool = False,
    may_generate: bool = True,
) -> SequenceView:
    return SequenceView(
        sequence=SequenceId(sequence),
        stream=StreamId(sequence if stream < 0 else stream),
        state=state,
        head=head,
        prompt_positions=prompt,
        computed_positions=positions,
        prefilled=prefilled,
        can_step=can_step,
        may_generate=may_generate,
    )


def test_streams_are_admitted_in_order_of_arrival_while_slots_are_free() -> None:
    plan = plan_step([view(5), view(6), view(7)], [], replace(CAPACITY, free_kv=2))
    assert plan.admit == (5, 6)
    plan = plan_step([view(5), view(6), view(7)], [], replace(CAPACITY, free_codec=1))
    assert plan.admit == (5,)


def test_stream_without_enough_text_does_not_block_the_next() -> None:
    plan = plan_step([view(1, prompt=0), view(2)], [], replace(CAPACITY, free_kv=1))
    assert plan.admit == (2,)


def test_prefill_is_chunked_and_running_streams_step_in_the_same_step() -> None:
    running = view(1, state=SequenceState.RUNNING, can_step=True)
    long = view(2, prompt=1000)
    plan = plan_step([running, long], [SlotHolder(StreamId(1))], replace(CAPACITY, urgent_prefill_positions=300))
    assert plan.step == (1,)
    assert [(each.sequence, each.start, each.length) for each in plan.prefill] == [(2, 0, 300)]
    half = view(2, state=SequenceState.PREFILLING, prompt=1000, positions=900)
    plan = plan_step(
        [running, half],
        [SlotHolder(StreamId(1)), SlotHolder(StreamId(2))],
        replace(CAPACITY, urgent_prefill_positions=300),
    )
    assert [(each.start, each.length) for each in plan.prefill] == [(900, 100)]


def test_prefill_budget_is_small_while_a_stream_has_little_slack() -> None:
    capacity = replace(CAPACITY, prefill_positions=300, urgent_prefill_positions=40)
    long = view(2, prompt=1000)

    def first_slice(*running: SequenceView) -> int:
        plan = plan_step([*running, long], [SlotHolder(each.stream) for each in running], capacity)
        return plan.prefill[0].length

    running = view(1, state=SequenceState.RUNNING, can_step=True)
    assert first_slice() == 300
    assert first_slice(replace(running, slack_s=0.5)) == first_slice(replace(running, slack_s=-3.0)) == 40
    assert (
        first_slice(replace(running, slack_s=AMPLE_SLACK_S + 0.1)) == first_slice(replace(running, slack_s=inf)) == 300
    )
    assert first_slice(replace(running, slack_s=0.5, can_step=False)) == 300  # cannot step, so does not count


def test_prefill_ahead_leaves_slots_for_new_streams() -> None:
    running = view(1, stream=1, state=SequenceState.RUNNING, can_step=True)
    behind = view(2, stream=1, head=False)
    holders = [SlotHolder(StreamId(1))]
    assert plan_step([running, behind], holders, Capacity(1, 0, 512, 512)).admit == (2,)
    assert plan_step([running, behind], holders, Capacity(1, 1, 512, 512)).admit == ()
    assert plan_step([running, behind], holders, Capacity(2, 1, 512, 512)).admit == (2,)


def test_only_the_head_steps() -> None:
    ahead = view(2, stream=1, head=False, state=SequenceState.RUNNING, can_step=True)
    assert plan_step([ahead], [SlotHolder(StreamId(1))], CAPACITY).step == ()


def test_prefilled_head_samples_only_if_flow_control_allows() -> None:
    prefilled = view(1, state=SequenceState.RUNNING, prefilled=True)
    assert plan_step([prefilled], [SlotHolder(StreamId(1))], CAPACITY).first_frame == (1,)
    assert plan_step([replace(prefilled, head=False)], [SlotHolder(StreamId(1))], CAPACITY).first_frame == ()
    assert plan_step([replace(prefilled, may_generate=False)], [SlotHolder(StreamId(1))], CAPACITY).idle


def test_idle_stream_is_parked_for_one_that_waits_after_the_stated_time() -> None:
    waiting = view(2, stream=2)
    full = Capacity(1, 0, 512, 512, yield_s=2.0)

    def parked(*holders: SlotHolder, wants: SequenceView = waiting) -> tuple[int, ...]:
        return plan_step([wants], list(holders), full).park

    busy, idle = SlotHolder(StreamId(1)), SlotHolder(StreamId(3), idle_s=2.0)
    assert parked(busy) == ()
    assert parked(busy, idle) == (3,)
    assert parked(busy, idle, SlotHolder(StreamId(4), idle_s=5.0)) == (4,)
    assert parked(busy, idle, wants=replace(waiting, may_generate=False)) == ()
    assert parked(busy, idle, wants=replace(waiting, prompt_positions=0)) == ()
    assert plan_step([waiting], [busy, idle], replace(full, free_codec=1)).park == ()  # it is admitted
    almost = plan_step([waiting], [busy, replace(idle, idle_s=0.5)], full)
    assert (almost.park, almost.wake_in_s, almost.idle) == ((), 1.5, True)
    assert plan_step([], [idle], full).wake_in_s == inf


def test_as_many_streams_are_parked_as_wait() -> None:
    idle = [SlotHolder(StreamId(number), idle_s=9.0 - number) for number in range(3)]
    two = [view(7), view(8)]
    assert plan_step(two, idle, Capacity(1, 0, 512, 512)).park == (0, 1)


def test_parked_stream_that_is_about_to_underrun_takes_the_slot_of_a_stream_with_ample_slack() -> None:
    full = Capacity(1, 0, 512, 512)
    parked = replace(view(2, state=SequenceState.PARKED, can_step=True), parked=True, slack_s=AMPLE_SLACK_S - 0.1)
    much_slack, little_slack = (
        SlotHolder(StreamId(1), slack_s=LENDER_SLACK_S + 0.1),
        SlotHolder(StreamId(3), slack_s=LENDER_SLACK_S - 0.1),
    )
    assert plan_step([parked], [much_slack, little_slack], full).park == (1,)
    assert plan_step([parked], [little_slack], full).park == ()
    assert plan_step([replace(parked, slack_s=AMPLE_SLACK_S)], [much_slack], full).park == ()
    new = view(2)
    assert plan_step([new], [much_slack], full).park == ()  # it was not admitted before, so it waits for its turn
    assert plan_step([replace(new, parked=True)], [much_slack], full).park == (1,)  # between two segments


def test_parked_stream_is_admitted_with_its_text_and_before_later_ones() -> None:
    parked = replace(view(1, state=SequenceState.PARKED, can_step=True), parked=True)
    plan = plan_step([parked, view(2)], [], Capacity(2, 1, 512, 512))
    assert plan.admit == (1,)
    assert plan.prefill == ()
    assert plan_step([replace(parked, can_step=False), view(2)], [], Capacity(2, 1, 512, 512)).admit == (2,)


STATES = st.sampled_from(list(SequenceState))
ROWS = st.lists(st.tuples(STATES, st.booleans(), st.integers(0, 40)), max_size=12)


@given(
    st.lists(st.tuples(STATES, st.booleans(), st.integers(0, 40)), max_size=12), st.integers(0, 4), st.integers(0, 4)
)
def test_plan_never_exceeds_capacity(
    rows: list[tuple[SequenceState, bool, int]], free_kv: int, free_codec: int
) -> None:
    views = [
        view(index, state=state, head=head, prompt=prompt, can_step=True)
        for index, (state, head, prompt) in enumerate(rows)
    ]
    plan = plan_step(views, [], Capacity(free_kv, free_codec, 32, 32))
    states = {each.sequence: each.state for each in views}
    assert len(plan.admit) <= min(free_kv, free_codec)
    assert all(states[each] in (SequenceState.WAITING, SequenceState.PARKED) for each in plan.admit)
    assert all(states[each] is SequenceState.RUNNING for each in plan.step)
    assert sum(each.length for each in plan.prefill) <= 32
    assert all(each.length > 0 for each in plan.prefill)
