"""The scheduler as a pure function: views in, plan out."""

from __future__ import annotations

from dataclasses import replace
from math import inf

from hypothesis import given
from hypothesis import strategies as st

from legato.engine.scheduler import COMFORTABLE_S, Capacity, SequenceView, plan_step
from legato.engine.sequence import SequenceState
from legato.types import SequenceId, StreamId

ROOM = Capacity(free_kv=8, free_codec=8, prefill_positions=512, live_prefill_positions=512)


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
    plan = plan_step([view(5), view(6), view(7)], frozenset(), replace(ROOM, free_kv=2))
    assert plan.admit == (5, 6)
    plan = plan_step([view(5), view(6), view(7)], frozenset(), replace(ROOM, free_codec=1))
    assert plan.admit == (5,)


def test_stream_without_enough_text_does_not_block_the_next() -> None:
    plan = plan_step([view(1, prompt=0), view(2)], frozenset(), replace(ROOM, free_kv=1))
    assert plan.admit == (2,)


def test_prefill_is_chunked_and_running_streams_step_in_the_same_step() -> None:
    running = view(1, state=SequenceState.RUNNING, can_step=True)
    long = view(2, prompt=1000)
    plan = plan_step([running, long], frozenset({StreamId(1)}), replace(ROOM, live_prefill_positions=300))
    assert plan.step == (1,)
    assert [(each.sequence, each.start, each.length) for each in plan.prefill] == [(2, 0, 300)]
    half = view(2, state=SequenceState.PREFILLING, prompt=1000, positions=900)
    plan = plan_step([running, half], frozenset({StreamId(1), StreamId(2)}), replace(ROOM, live_prefill_positions=300))
    assert [(each.start, each.length) for each in plan.prefill] == [(900, 100)]


def test_prefill_budget_is_small_while_a_stream_has_little_slack() -> None:
    room = replace(ROOM, prefill_positions=300, live_prefill_positions=40)
    long = view(2, prompt=1000)

    def first_slice(*running: SequenceView) -> int:
        plan = plan_step([*running, long], frozenset(each.stream for each in running), room)
        return plan.prefill[0].length

    running = view(1, state=SequenceState.RUNNING, can_step=True)
    assert first_slice() == 300
    assert first_slice(replace(running, slack_s=0.5)) == first_slice(replace(running, slack_s=-3.0)) == 40
    assert (
        first_slice(replace(running, slack_s=COMFORTABLE_S + 0.1)) == first_slice(replace(running, slack_s=inf)) == 300
    )
    assert first_slice(replace(running, slack_s=0.5, can_step=False)) == 300  # cannot step, so does not count


def test_prefill_ahead_leaves_slots_for_new_streams() -> None:
    running = view(1, stream=1, state=SequenceState.RUNNING, can_step=True)
    behind = view(2, stream=1, head=False)
    seated = frozenset({StreamId(1)})
    assert plan_step([running, behind], seated, Capacity(1, 0, 512, 512)).admit == (2,)
    assert plan_step([running, behind], seated, Capacity(1, 1, 512, 512)).admit == ()
    assert plan_step([running, behind], seated, Capacity(2, 1, 512, 512)).admit == (2,)


def test_only_the_head_steps() -> None:
    ahead = view(2, stream=1, head=False, state=SequenceState.RUNNING, can_step=True)
    assert plan_step([ahead], frozenset({StreamId(1)}), ROOM).step == ()


def test_prefilled_head_samples_only_if_flow_control_allows() -> None:
    prefilled = view(1, state=SequenceState.RUNNING, prefilled=True)
    assert plan_step([prefilled], frozenset({StreamId(1)}), ROOM).first_frame == (1,)
    assert plan_step([replace(prefilled, head=False)], frozenset({StreamId(1)}), ROOM).first_frame == ()
    assert plan_step([replace(prefilled, may_generate=False)], frozenset({StreamId(1)}), ROOM).idle


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
    plan = plan_step(views, frozenset(), Capacity(free_kv, free_codec, 32, 32))
    states = {each.sequence: each.state for each in views}
    assert len(plan.admit) <= min(free_kv, free_codec)
    assert all(states[each] is SequenceState.WAITING for each in plan.admit)
    assert all(states[each] is SequenceState.RUNNING for each in plan.step)
    assert sum(each.length for each in plan.prefill) <= 32
    assert all(each.length > 0 for each in plan.prefill)
