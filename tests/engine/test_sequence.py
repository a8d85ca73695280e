"""Transitions of a sequence, and the text token that is fed with each frame."""

from __future__ import annotations

import pytest

from legato.engine.sequence import TERMINAL, TRANSITIONS, SequenceEvent, SequenceState, next_state, text_to_feed
from legato.errors import StateError
from legato.types import PromptPlan
from tests.engine.tiny import LetterTrack


def test_transition_outside_the_table_raises() -> None:
    for state in SequenceState:
        for event in SequenceEvent:
            if (state, event) in TRANSITIONS:
                assert next_state(state, event) is TRANSITIONS[state, event]
            else:
                with pytest.raises(StateError, match=rf"{state.value}.*{event.value}"):
                    next_state(state, event)


def test_terminal_states_have_no_transitions_and_others_can_cancel_and_fail() -> None:
    for state in SequenceState:
        leaves = {event for (source, event) in TRANSITIONS if source is state}
        if state in TERMINAL:
            assert not leaves
        else:
            assert {SequenceEvent.CANCEL, SequenceEvent.FAIL} <= leaves


PLAN = PromptPlan(rows=(), settled=0, consumed=2, feed_before=((90,), (91,)), feed_after=((99,),), pad=(0,))


def fed(track: LetterTrack, steps: int) -> list[tuple[int, ...] | None]:
    return [text_to_feed(PLAN, track, step) for step in range(steps)]


def test_text_is_fed_in_order_then_end_tokens_then_padding() -> None:
    track = LetterTrack()
    track.append("abcd")
    track.end()
    letters = list(track.tokens)
    assert fed(track, 7) == [(90,), (91,), letters[2], letters[3], (99,), (0,), (0,)]


def test_missing_text_is_not_padded() -> None:
    track = LetterTrack()
    track.append("abc")
    assert [each is not None for each in fed(track, 6)] == [True, True, True, False, False, False]


def test_track_shorter_than_prompt_is_followed_by_end_tokens() -> None:
    track = LetterTrack()
    track.append("a")
    track.end()
    assert fed(track, 4) == [(90,), (91,), (99,), (0,)]
