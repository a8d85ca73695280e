"""Transitions of a sequence, and the text token that is fed with each frame."""

from __future__ import annotations

import pytest

from legato.engine.sequence import TERMINAL, TRANSITIONS, SequenceEvent, SequenceState, next_state, text_token_after
from legato.errors import StateError
from legato.types import PromptPlan
from tests.engine.tiny import LetterTokenizer


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
        outgoing = {event for (source, event) in TRANSITIONS if source is state}
        if state in TERMINAL:
            assert not outgoing
        else:
            assert {SequenceEvent.CANCEL, SequenceEvent.FAIL} <= outgoing


PLAN = PromptPlan(
    rows=(),
    fixed_prefix_len=0,
    next_text_index=2,
    leading_tokens=((90,), (91,)),
    trailing_tokens=((99,),),
    pad_token=(0,),
)


def fed(tokenizer: LetterTokenizer, steps: int) -> list[tuple[int, ...] | None]:
    return [text_token_after(PLAN, tokenizer, step) for step in range(steps)]


def test_text_is_fed_in_order_then_end_tokens_then_padding() -> None:
    tokenizer = LetterTokenizer()
    tokenizer.append("abcd")
    tokenizer.end()
    letters = list(tokenizer.tokens)
    assert fed(tokenizer, 7) == [(90,), (91,), letters[2], letters[3], (99,), (0,), (0,)]


def test_missing_text_is_not_padded() -> None:
    tokenizer = LetterTokenizer()
    tokenizer.append("abc")
    assert [each is not None for each in fed(tokenizer, 6)] == [True, True, True, False, False, False]


def test_text_shorter_than_prompt_is_followed_by_end_tokens() -> None:
    tokenizer = LetterTokenizer()
    tokenizer.append("a")
    tokenizer.end()
    assert fed(tokenizer, 4) == [(90,), (91,), (99,), (0,)]
