"""The scheduler, alone: views in, plan out."""

from __future__ import annotations

from dataclasses import replace
from math import inf

from hypothesis import given
from hypothesis import strategies as st

from legato.engine.scheduler import EASY_S, Capacity, SequenceView, plan_turn
from legato.engine.sequence import SequenceState
from legato.flow import SequenceId, StreamId

ROOM = Capacity(free_kv=8, free_codec=8, prefill_positions=512, prefill_beside=512)


def view(
    sequence: int,
    *,
    stream: int = -1,
    state: SequenceState = SequenceState.WAITING,
    head: bool = True,
    prompt: int = 10,
    positions: int = 0,
    primed: bool = False,
    can_step: bool = False,
    wanted: bool = True,
) -> SequenceView:
    return SequenceView(
        sequence=SequenceId(sequence),
        stream=StreamId(sequence if stream < 0 else stream),
        state=state,
        head=head,
        prompt_positions=prompt,
        positions=positions,
        primed=primed,
        can_step=can_step,
        wanted=wanted,
    )


def test_streams_are_admitted_in_the_order_of_arrival_while_there_is_room() -> None:
    plan = plan_turn([view(5), view(6), view(7)], frozenset(), replace(ROOM, free_kv=2))
    assert plan.admit == (5, 6)
    plan = plan_turn([view(5), view(6), view(7)], frozenset(), replace(ROOM, free_codec=1))
    assert plan.admit == (5,)


def test_one_without_enough_text_does_not_hold_up_the_next() -> None:
    plan = plan_turn([view(1, prompt=0), view(2)], frozenset(), replace(ROOM, free_kv=1))
    assert plan.admit == (2,)


def test_prefill_is_sliced_and_running_streams_step_in_the_same_turn() -> None:
    running = view(1, state=SequenceState.RUNNING, can_step=True)
    long = view(2, prompt=1000)
    plan = plan_turn([running, long], frozenset({StreamId(1)}), replace(ROOM, prefill_beside=300))
    assert plan.step == (1,)
    assert [(each.sequence, each.start, each.length) for each in plan.prefill] == [(2, 0, 300)]
    half = view(2, state=SequenceState.PREFILLING, prompt=1000, positions=900)
    plan = plan_turn([running, half], frozenset({StreamId(1), StreamId(2)}), replace(ROOM, prefill_beside=300))
    assert [(each.start, each.length) for each in plan.prefill] == [(900, 100)]


def test_prompts_come_in_small_slices_beside_a_listener_who_could_run_dry() -> None:
    room = replace(ROOM, prefill_positions=300, prefill_beside=40)
    long = view(2, prompt=1000)

    def first_slice(*running: SequenceView) -> int:
        plan = plan_turn([*running, long], frozenset(each.stream for each in running), room)
        return plan.prefill[0].length

    speaking = view(1, state=SequenceState.RUNNING, can_step=True)
    assert first_slice() == 300
    assert first_slice(replace(speaking, slack_s=0.5)) == first_slice(replace(speaking, slack_s=-3.0)) == 40
    assert first_slice(replace(speaking, slack_s=EASY_S + 0.1)) == first_slice(replace(speaking, slack_s=inf)) == 300
    assert first_slice(replace(speaking, slack_s=0.5, can_step=False)) == 300  # it has nothing to compute itself


def test_the_next_segment_is_prefilled_ahead_but_never_takes_the_slot_that_a_new_stream_needs() -> None:
    speaking = view(1, stream=1, state=SequenceState.RUNNING, can_step=True)
    behind = view(2, stream=1, head=False)
    seated = frozenset({StreamId(1)})
    assert plan_turn([speaking, behind], seated, Capacity(1, 0, 512, 512)).admit == (2,)
    assert plan_turn([speaking, behind], seated, Capacity(1, 1, 512, 512)).admit == ()
    assert plan_turn([speaking, behind], seated, Capacity(2, 1, 512, 512)).admit == (2,)


def test_a_segment_that_is_not_the_head_never_steps() -> None:
    ahead = view(2, stream=1, head=False, state=SequenceState.RUNNING, can_step=True)
    assert plan_turn([ahead], frozenset({StreamId(1)}), ROOM).step == ()


def test_a_primed_head_draws_and_nobody_computes_what_is_not_wanted() -> None:
    primed = view(1, state=SequenceState.RUNNING, primed=True)
    assert plan_turn([primed], frozenset({StreamId(1)}), ROOM).begin == (1,)
    assert plan_turn([replace(primed, head=False)], frozenset({StreamId(1)}), ROOM).begin == ()
    assert plan_turn([replace(primed, wanted=False)], frozenset({StreamId(1)}), ROOM).idle


STATES = st.sampled_from(list(SequenceState))
ROWS = st.lists(st.tuples(STATES, st.booleans(), st.integers(0, 40)), max_size=12)


@given(
    st.lists(st.tuples(STATES, st.booleans(), st.integers(0, 40)), max_size=12), st.integers(0, 4), st.integers(0, 4)
)
def test_a_plan_never_takes_more_than_there_is(
    rows: list[tuple[SequenceState, bool, int]], free_kv: int, free_codec: int
) -> None:
    views = [
        view(index, state=state, head=head, prompt=prompt, can_step=True)
        for index, (state, head, prompt) in enumerate(rows)
    ]
    plan = plan_turn(views, frozenset(), Capacity(free_kv, free_codec, 32, 32))
    states = {each.sequence: each.state for each in views}
    assert len(plan.admit) <= min(free_kv, free_codec)
    assert all(states[each] is SequenceState.WAITING for each in plan.admit)
    assert all(states[each] is SequenceState.RUNNING for each in plan.step)
    assert sum(each.length for each in plan.prefill) <= 32
    assert all(each.length > 0 for each in plan.prefill)
