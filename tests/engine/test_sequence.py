"""The table of a sequence's states, and which text goes with which frame."""

from __future__ import annotations

import pytest

from legato.engine.sequence import OVER, TRANSITIONS, SequenceEvent, SequenceState, next_state, text_to_feed
from legato.errors import StateError
from legato.flow import PromptPlan
from tests.engine.tiny import LetterTrack


def test_every_pair_outside_the_table_is_an_error_naming_state_and_event() -> None:
    for state in SequenceState:
        for event in SequenceEvent:
            if (state, event) in TRANSITIONS:
                assert next_state(state, event) is TRANSITIONS[state, event]
            else:
                with pytest.raises(StateError, match=rf"{state.value}.*{event.value}"):
                    next_state(state, event)


def test_nothing_leaves_an_end_and_everything_else_can_be_cancelled_and_fail() -> None:
    for state in SequenceState:
        leaves = {event for (source, event) in TRANSITIONS if source is state}
        if state in OVER:
            assert not leaves
        else:
            assert {SequenceEvent.CANCEL, SequenceEvent.FAIL} <= leaves


PLAN = PromptPlan(rows=(), settled=0, consumed=2, feed_before=((90,), (91,)), feed_after=((99,),), pad=(0,))


def fed(track: LetterTrack, steps: int) -> list[list[tuple[int, ...]]]:
    return [text_to_feed(PLAN, track, step) for step in range(steps)]


def test_text_is_fed_in_order_then_the_end_then_padding() -> None:
    track = LetterTrack()
    track.append("abcd")
    track.end()
    letters = [[token] for token in track.tokens]
    assert fed(track, 7) == [[(90,)], [(91,)], letters[2], letters[3], [(99,)], [(0,)], [(0,)]]


def test_text_that_has_not_come_is_waited_for_and_never_padded() -> None:
    track = LetterTrack()
    track.append("abc")
    assert [len(each) for each in fed(track, 6)] == [1, 1, 1, 0, 0, 0]


def test_a_track_shorter_than_its_prompt_goes_straight_to_the_end() -> None:
    track = LetterTrack()
    track.append("a")
    track.end()
    assert fed(track, 4) == [[(90,)], [(91,)], [(99,)], [(0,)]]
