"""Prompt plans row by row for every layout, independent of how the text arrives.

The expected rows are written by hand from the official layouts. Parity tests against the official package: `parity/`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from legato.config.checkpoint import read_model_config
from legato.config.model import ModelConfig, TalkerConfig
from legato.errors import (
    UnspeakableTextError,
    UnsupportedError,
)
from legato.text.prompt import (
    WHOLE_TEXT,
    plan_prompt,
)
from legato.types import NeedsText, PromptPlan, PromptRow, PromptSpec, TextLayout, TextToken, WordSpan
from tests.conftest import TinyCheckpoint

PAD, BOS, EOS = (151671,), (151672,), (151673,)
CODEC_PAD, CODEC_BOS = 2148, 2149
THINK, NOTHINK, THINK_BOS, THINK_EOS = 2154, 2155, 2156, 2157
ROLE = [PromptRow(text=(token,)) for token in (151644, 77091, 198)]
WHOLE, STREAMING = TextLayout.WHOLE, TextLayout.STREAMING


@dataclass(frozen=True, slots=True)
class FixedTokens:
    """Snapshot of a text tokenizer."""

    tokens: tuple[TextToken, ...]
    ended: bool
    words: tuple[WordSpan, ...] = ()

    def append(self, text: str) -> None:
        raise AssertionError(text)

    def end(self) -> None:
        raise AssertionError("end")


def ids(*numbers: int) -> tuple[TextToken, ...]:
    return tuple((number,) for number in numbers)


def read(path: Path) -> ModelConfig:
    return read_model_config(path)


@pytest.fixture(scope="module")
def custom(tiny_checkpoint: TinyCheckpoint) -> TalkerConfig:
    return read(tiny_checkpoint("tiny-custom-voice")).talker


@pytest.fixture(scope="module")
def embedded(tiny_checkpoint: TinyCheckpoint) -> TalkerConfig:
    return read(tiny_checkpoint("tiny-embedded")).talker


def planned(talker: TalkerConfig, spec: PromptSpec, tokens: Sequence[TextToken], *, ended: bool = True) -> PromptPlan:
    plan = plan_prompt(talker, spec, FixedTokens(tuple(tokens), ended))
    assert isinstance(plan, PromptPlan)
    return plan


def tag(*codes: int, speaker: Sequence[PromptRow] = ()) -> list[PromptRow]:
    """The tag block: codes with text pads, then the speaker, then codec pad with the text's BOS."""
    rows = [PromptRow(text=PAD, code=code) for code in codes]
    return [*rows, *speaker, PromptRow(text=BOS, code=CODEC_PAD)]


AUTO_TAG = (NOTHINK, THINK_BOS, THINK_EOS)
VECTOR = [PromptRow(text=PAD, speaker_vector=True)]


def fed(plan: PromptPlan, tokens: Sequence[TextToken], steps: int) -> list[TextToken]:
    """Text tokens added after each frame, as defined by the plan."""
    queue = [*plan.leading_tokens, *tokens[plan.next_text_index :], *plan.trailing_tokens]
    return [queue[n] if n < len(queue) else plan.pad_token for n in range(steps)]


def test_plain_streaming_with_a_speaker(custom: TalkerConfig) -> None:
    plan = planned(custom, PromptSpec("English", "Ryan", STREAMING), ids(10, 11, 12))
    speaker = [PromptRow(text=PAD, code=3061)]
    assert list(plan.rows) == [
        *ROLE,
        *tag(THINK, THINK_BOS, 2050, THINK_EOS, speaker=speaker),
        PromptRow(text=(10,), code=CODEC_BOS),
    ]
    assert fed(plan, ids(10, 11, 12), 5) == [(11,), (12,), EOS, PAD, PAD]


def test_plain_whole(custom: TalkerConfig) -> None:
    plan = planned(custom, PromptSpec("auto", "ryan", WHOLE), ids(10, 11))
    assert list(plan.rows) == [
        *ROLE,
        *tag(*AUTO_TAG, speaker=[PromptRow(text=PAD, code=3061)]),
        PromptRow(text=(10,), code=CODEC_PAD),
        PromptRow(text=(11,), code=CODEC_PAD),
        PromptRow(text=EOS, code=CODEC_PAD),
        PromptRow(text=PAD, code=CODEC_BOS),
    ]
    assert fed(plan, ids(10, 11), 3) == [PAD, PAD, PAD]


def test_voice_design_has_instruction_and_no_speaker(custom: TalkerConfig) -> None:
    plan = planned(custom, PromptSpec("auto", "", STREAMING, instruct=ids(1, 2, 3)), ids(10))
    assert list(plan.rows) == [
        *(PromptRow(text=token) for token in ids(1, 2, 3)),
        *ROLE,
        *tag(*AUTO_TAG),
        PromptRow(text=(10,), code=CODEC_BOS),
    ]


def test_speaker_vector_without_transcript(custom: TalkerConfig) -> None:
    plan = planned(custom, PromptSpec("auto", "", STREAMING, speaker_vector=True), ids(10, 11))
    assert list(plan.rows) == [*ROLE, *tag(*AUTO_TAG, speaker=VECTOR), PromptRow(text=(10,), code=CODEC_BOS)]


def clone(layout: TextLayout, transcript: tuple[TextToken, ...], frames: int) -> PromptSpec:
    return PromptSpec("auto", "", layout, speaker_vector=True, reference_text=transcript, reference_frames=frames)


def over(*texts: TextToken) -> list[PromptRow]:
    """Rows of codec BOS and the reference frames, each with a text token."""
    first, *rest = texts
    return [PromptRow(text=first, code=CODEC_BOS), *(PromptRow(text=t, reference_frame=i) for i, t in enumerate(rest))]


def test_clone_streaming_text_longer_than_the_reference(custom: TalkerConfig) -> None:
    tokens = ids(10, 11, 12)
    plan = planned(custom, clone(STREAMING, ids(1, 2), 3), tokens)
    assert list(plan.rows) == [*ROLE, *tag(*AUTO_TAG, speaker=VECTOR), *over((1,), (2,), (10,), (11,))]
    assert plan.next_text_index == 2
    assert fed(plan, tokens, 4) == [(12,), EOS, PAD, PAD]


def test_clone_streaming_transcript_longer_than_the_reference(custom: TalkerConfig) -> None:
    """The rest of the transcript is fed before the text; the prompt contains no token of the text."""
    spec = clone(STREAMING, ids(1, 2, 3, 4), 2)
    plan = planned(custom, spec, (), ended=False)
    assert plan == planned(custom, spec, ids(10, 11))
    assert list(plan.rows)[-3:] == over((1,), (2,), (3,))
    assert (plan.next_text_index, plan.leading_tokens) == (0, ids(4))
    assert fed(plan, ids(10, 11), 5) == [(4,), (10,), (11,), EOS, PAD]


def test_clone_streaming_reference_longer_than_all_text(custom: TalkerConfig) -> None:
    plan = planned(custom, clone(STREAMING, ids(1), 5), ids(10))
    assert list(plan.rows)[-6:] == over((1,), (10,), EOS, PAD, PAD, PAD)
    assert fed(plan, ids(10), 2) == [PAD, PAD]


@pytest.mark.parametrize("frames", [2, 3])
def test_clone_streaming_text_length_at_boundary(frames: int, custom: TalkerConfig) -> None:
    """Text and end of text have 4 tokens: 1 + 3 rows contain the end of text, 1 + 2 rows do not."""
    plan = planned(custom, clone(STREAMING, ids(1, 2), frames), ids(10))
    assert [row.text for row in plan.rows[-(1 + frames) :]] == [(1,), (2,), (10,), EOS][: 1 + frames]
    assert fed(plan, ids(10), 2) == ([EOS, PAD] if frames == 2 else [PAD, PAD])


def test_clone_whole(custom: TalkerConfig) -> None:
    plan = planned(custom, clone(WHOLE, ids(1, 2), 2), ids(10))
    assert list(plan.rows) == [
        *ROLE,
        *tag(*AUTO_TAG, speaker=VECTOR),
        *(PromptRow(text=token, code=CODEC_PAD) for token in (*ids(1, 2, 10), EOS)),
        *over(PAD, PAD, PAD),
    ]
    assert fed(plan, ids(10), 2) == [PAD, PAD]
    bos_rows = [row for row in plan.rows if row.code == CODEC_BOS]
    assert len(bos_rows) == 1


def test_embedded_voice(embedded: TalkerConfig) -> None:
    tokens: list[TextToken] = [(n, n, n, n) for n in range(1, 7)]
    spec = PromptSpec("english", "Two", STREAMING)
    plan = planned(embedded, spec, tokens)
    pad, bos = embedded.ids.pad, embedded.ids.bos
    assert list(plan.rows) == [
        PromptRow(code=68),
        *(PromptRow(text=token, code=pad) for token in tokens[:3]),
        PromptRow(text=tokens[3], code=bos),
    ]
    assert fed(plan, tokens, 4) == [tokens[4], tokens[5], (0, 0, 0, 0), (0, 0, 0, 0)]
    assert plan_prompt(embedded, spec, FixedTokens(tuple(tokens[:3]), ended=False)) == NeedsText(4)
    short = planned(embedded, spec, tokens[:1])
    assert [row.text for row in short.rows] == [None, tokens[0], (0,) * 4, (0,) * 4, (0,) * 4]
    assert (short.next_text_index, planned(embedded, replace(spec, layout=WHOLE), tokens)) == (1, plan)


def test_embedded_voice_rejects_instructions_and_cloning(embedded: TalkerConfig) -> None:
    for spec in (
        PromptSpec("auto", "one", STREAMING, instruct=ids(1)),
        PromptSpec("auto", "", STREAMING, speaker_vector=True),
    ):
        with pytest.raises(UnsupportedError):
            planned(embedded, spec, [(1, 1, 1, 1)])


SPECS = st.builds(
    PromptSpec,
    language=st.sampled_from(["auto", "Chinese"]),
    speaker=st.just(""),
    layout=st.sampled_from(list(TextLayout)),
    instruct=st.sampled_from([(), ids(1, 2)]),
    speaker_vector=st.booleans(),
    reference_text=st.just(()),
    reference_frames=st.just(0),
)
CLONES = st.builds(
    clone,
    st.sampled_from(list(TextLayout)),
    st.lists(st.integers(0, 9), min_size=1, max_size=6).map(lambda numbers: ids(*numbers)),
    st.integers(1, 8),
)


@given(spec=st.one_of(SPECS, CLONES), tokens=st.lists(st.integers(10, 19), min_size=1, max_size=8))
@settings(max_examples=150, deadline=None)
def test_plan_does_not_depend_on_text_arrival(spec: PromptSpec, tokens: list[int], custom: TalkerConfig) -> None:
    """`NeedsText` never requires more text than the prompt contains."""
    text = ids(*tokens)
    whole = planned(custom, spec, text)
    for known in range(len(text) + 1):
        early = plan_prompt(custom, spec, FixedTokens(text[:known], ended=False))
        if isinstance(early, NeedsText):
            assert early.tokens > known
            assert early.tokens == WHOLE_TEXT or spec.layout is STREAMING
            assert known < max(1, whole.next_text_index) or spec.layout is WHOLE or whole.trailing_tokens == ()
        else:
            assert early == whole
            assert early.next_text_index <= known


@given(spec=st.one_of(SPECS, CLONES), pair=st.permutations(range(20, 40)), ended=st.booleans())
@settings(max_examples=100, deadline=None)
def test_settled_rows_are_the_common_prefix_of_all_texts(
    spec: PromptSpec, pair: list[int], ended: bool, custom: TalkerConfig
) -> None:
    """Prompts of two texts without common tokens differ right after the fixed_prefix_len rows, or end there."""
    one, other = (planned(custom, spec, ids(*half)) for half in (pair[:10], pair[10:] if ended else pair[10:19]))
    assert one.fixed_prefix_len == other.fixed_prefix_len
    assert one.rows[: one.fixed_prefix_len] == other.rows[: one.fixed_prefix_len]
    assert one.fixed_prefix_len == len(one.rows) or one.rows[one.fixed_prefix_len] != other.rows[one.fixed_prefix_len]


def test_whole_text_waits_for_the_end(custom: TalkerConfig) -> None:
    tokenizer = FixedTokens(ids(10, 11), ended=False)
    assert plan_prompt(custom, PromptSpec("auto", "", WHOLE), tokenizer) == NeedsText(WHOLE_TEXT)
    assert plan_prompt(custom, PromptSpec("auto", "", STREAMING), FixedTokens((), ended=False)) == NeedsText(1)


@pytest.mark.parametrize("layout", TextLayout)
def test_empty_text_raises(layout: TextLayout, custom: TalkerConfig, embedded: TalkerConfig) -> None:
    for talker, speaker in ((custom, ""), (embedded, "one")):
        with pytest.raises(UnspeakableTextError):
            plan_prompt(talker, PromptSpec("auto", speaker, layout), FixedTokens((), ended=True))
