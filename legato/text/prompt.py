"""Build the `PromptPlan` of a sequence: the talker's prompt, and the text token that is added after each frame.

Layouts: official models (plain or in-context clone, whole or streaming text) and embedded voice. Also resolves language
tags, dialects and speaker names. Pure functions on ids, without tensors or tokenizer. The official layouts follow the
official package 0.1.1 (`generate` of its 12 Hz model), but are built directly instead of slicing a chat template.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from enum import Enum

from legato.config.model import BpeTextConfig, LanguageIds, ModelConfig, PhoneTextConfig, TalkerConfig
from legato.errors import (
    StateError,
    UnknownLanguageError,
    UnknownVoiceError,
    UnspeakableTextError,
    UnsupportedError,
)
from legato.text.languages import language_name
from legato.types import IncrementalTokenizer, NeedsText, PromptPlan, PromptRow, PromptSpec, TextLayout, TextToken

AUTO = "auto"
WHOLE_TEXT = sys.maxsize
"""`NeedsText.tokens` if the prompt contains the whole text, so that the tokenizer must have ended."""

_DIALECT_HOME = "chinese"


class InstructSupport(Enum):
    """Whether a model supports a style instruction."""

    USED = "used"
    IGNORED = "ignored"
    """The official 0.6B CustomVoice does not support instructions; the official package drops them silently."""
    UNSUPPORTED = "unsupported"


# --- names -----------------------------------------------------------------------------------------------------------


def allowed_languages(talker: TalkerConfig) -> tuple[str, ...]:
    """Languages that a request may use: "auto" and the model's languages. Dialects are selected by the speaker."""
    if talker.language_ids is None:
        return (AUTO, "english") if _is_english(talker) else (AUTO,)
    return (AUTO, *sorted(name for name in talker.language_ids.languages if "dialect" not in name))


def resolve_language(talker: TalkerConfig, language: str, speaker: str) -> str:
    """Language for the tag block of the prompt: "auto", a language, or the speaker's dialect.

    Case is ignored, and codes such as `en` or `en-US` are accepted. For a speaker with a dialect, "auto" and "chinese"
    select that dialect. Raises `UnknownLanguageError` with the allowed names.
    """
    name = language_name(language) or AUTO
    allowed = allowed_languages(talker)
    if name not in allowed:
        raise UnknownLanguageError(
            f"language {language!r} is not supported by this model; allowed: {', '.join(allowed)}", field="language"
        )
    dialect = talker.dialects.get(speaker.strip().lower())
    return dialect if dialect is not None and name in (AUTO, _DIALECT_HOME) else name


def resolve_speaker(talker: TalkerConfig, speaker: str) -> int:
    """Codec embedding row of a speaker. Case is ignored. Raises `UnknownVoiceError` with the allowed names."""
    name = speaker.strip().lower()
    if name not in talker.speakers:
        names = ", ".join(sorted(talker.speakers)) or "none (this model has no built-in speakers)"
        raise UnknownVoiceError(f"speaker {speaker!r} is not in this model; allowed: {names}", field="voice")
    return talker.speakers[name]


def instruct_support(config: ModelConfig) -> InstructSupport:
    """Whether the model supports an instruction. Callers report `IGNORED` as a note and `UNSUPPORTED` as an error."""
    if config.kind == "voice_design":
        return InstructSupport.USED
    if config.kind == "custom_voice":
        return InstructSupport.IGNORED if config.size == "0b6" else InstructSupport.USED
    return InstructSupport.UNSUPPORTED


# --- plan ------------------------------------------------------------------------------------------------------------


def plan_prompt(talker: TalkerConfig, spec: PromptSpec, tokenizer: IncrementalTokenizer) -> PromptPlan | NeedsText:
    """Build the prompt, or return `NeedsText` if `tokenizer` does not have all tokens that the prompt contains.

    The plan does not depend on when this is called or how the text arrives. Raises `UnspeakableTextError` if the text
    ended without tokens, `UnknownLanguageError`, `UnknownVoiceError`, and `UnsupportedError` for a spec that the model
    does not support.
    """
    if tokenizer.ended and not tokenizer.tokens:
        raise UnspeakableTextError("the text contains nothing that can be spoken", field="text")
    if isinstance(talker.text, PhoneTextConfig):
        return _embedded_plan(talker, talker.text, spec, tokenizer)
    if talker.language_ids is None:
        raise StateError("talker config with BPE text has no language ids")
    header = _header(talker, talker.text, talker.language_ids, spec)
    if spec.reference_frames:
        body = _clone_whole if spec.layout is TextLayout.WHOLE else _clone_streaming
        return body(talker, talker.text, header, spec, tokenizer)
    if spec.reference_text:
        raise UnsupportedError("a reference transcript requires the reference's codes", field="reference_text")
    plain = _plain_whole if spec.layout is TextLayout.WHOLE else _plain_streaming
    return plain(talker, talker.text, header, tokenizer)


def _header(
    talker: TalkerConfig, text: BpeTextConfig, languages: LanguageIds, spec: PromptSpec
) -> tuple[PromptRow, ...]:
    """Instruction and role block (text only), then the tag block: language tag, speaker, codec pad (with text pads)."""
    if spec.speaker and spec.speaker_vector:
        raise UnsupportedError("specify a speaker name or a speaker vector, not both", field="voice")
    language = resolve_language(talker, spec.language, spec.speaker)
    if language == AUTO:
        tag: tuple[int, ...] = (languages.nothink, languages.think_bos, languages.think_eos)
    else:
        tag = (languages.think, languages.think_bos, languages.languages[language], languages.think_eos)
    role = ((text.im_start_id,), (text.assistant_id,), (text.newline_id,))
    pad = (text.pad_id,)
    rows = [PromptRow(text=token) for token in (*spec.instruct, *role)]
    rows += [PromptRow(text=pad, code=code) for code in tag]
    if spec.speaker:
        rows.append(PromptRow(text=pad, code=resolve_speaker(talker, spec.speaker)))
    if spec.speaker_vector:
        rows.append(PromptRow(text=pad, speaker_vector=True))
    rows.append(PromptRow(text=(text.bos_id,), code=talker.ids.pad))
    return tuple(rows)


def _plain_streaming(
    talker: TalkerConfig, text: BpeTextConfig, header: tuple[PromptRow, ...], tokenizer: IncrementalTokenizer
) -> PromptPlan | NeedsText:
    """The prompt ends with the first text token and codec BOS. After it: one text token per frame, then end of text."""
    if not tokenizer.tokens:
        return NeedsText(1)
    first = PromptRow(text=tokenizer.tokens[0], code=talker.ids.bos)
    return _official_plan(text, (*header, first), fixed_prefix_len=len(header), next_text_index=1, end_of_text=True)


def _plain_whole(
    talker: TalkerConfig, text: BpeTextConfig, header: tuple[PromptRow, ...], tokenizer: IncrementalTokenizer
) -> PromptPlan | NeedsText:
    """The prompt contains all text and end of text (with codec pads), then codec BOS."""
    if not tokenizer.ended:
        return NeedsText(WHOLE_TEXT)
    tokens = (*tokenizer.tokens, (text.eos_id,))
    body = tuple(PromptRow(text=token, code=talker.ids.pad) for token in tokens)
    start = PromptRow(text=(text.pad_id,), code=talker.ids.bos)
    return _official_plan(
        text, (*header, *body, start), fixed_prefix_len=len(header), next_text_index=len(tokenizer.tokens)
    )


def _clone_streaming(
    talker: TalkerConfig,
    text: BpeTextConfig,
    header: tuple[PromptRow, ...],
    spec: PromptSpec,
    tokenizer: IncrementalTokenizer,
) -> PromptPlan | NeedsText:
    """Transcript and text are added to codec BOS and the reference frames. Remaining tokens follow, one per frame."""
    length = 1 + spec.reference_frames
    text_rows = max(0, length - len(spec.reference_text))
    if len(tokenizer.tokens) < text_rows and not tokenizer.ended:
        return NeedsText(text_rows)
    next_text_index = min(text_rows, len(tokenizer.tokens))
    tokens = [*spec.reference_text[:length], *tokenizer.tokens[:next_text_index]]
    fits = len(tokens) < length
    if fits:  # all text is in the prompt, so the end of text is, too
        tokens.append((text.eos_id,))
        tokens += [(text.pad_id,)] * (length - len(tokens))
    rows = _reference_rows(talker, tokens)
    return _official_plan(
        text,
        (*header, *rows),
        fixed_prefix_len=len(header) + min(len(spec.reference_text), length),
        next_text_index=next_text_index,
        leading_tokens=spec.reference_text[length:],
        end_of_text=not fits,
    )


def _clone_whole(
    talker: TalkerConfig,
    text: BpeTextConfig,
    header: tuple[PromptRow, ...],
    spec: PromptSpec,
    tokenizer: IncrementalTokenizer,
) -> PromptPlan | NeedsText:
    """Transcript, text and end of text (with codec pads), then codec BOS and the reference frames (with text pads)."""
    if not tokenizer.ended:
        return NeedsText(WHOLE_TEXT)
    tokens = (*spec.reference_text, *tokenizer.tokens, (text.eos_id,))
    body = tuple(PromptRow(text=token, code=talker.ids.pad) for token in tokens)
    rows = _reference_rows(talker, [(text.pad_id,)] * (1 + spec.reference_frames))
    fixed_prefix_len = len(header) + len(spec.reference_text)
    return _official_plan(
        text, (*header, *body, *rows), fixed_prefix_len=fixed_prefix_len, next_text_index=len(tokenizer.tokens)
    )


def _reference_rows(talker: TalkerConfig, tokens: Iterable[TextToken]) -> tuple[PromptRow, ...]:
    """Prompt rows with codec BOS (first row) and the reference frames, each with a text token."""
    return tuple(
        PromptRow(text=token, reference_frame=i - 1) if i else PromptRow(text=token, code=talker.ids.bos)
        for i, token in enumerate(tokens)
    )


def _official_plan(
    text: BpeTextConfig,
    rows: tuple[PromptRow, ...],
    *,
    fixed_prefix_len: int,
    next_text_index: int,
    leading_tokens: tuple[TextToken, ...] = (),
    end_of_text: bool = False,
) -> PromptPlan:
    return PromptPlan(
        rows=rows,
        fixed_prefix_len=fixed_prefix_len,
        next_text_index=next_text_index,
        leading_tokens=leading_tokens,
        trailing_tokens=((text.eos_id,),) if end_of_text else (),
        pad_token=(text.pad_id,),
    )


def _embedded_plan(
    talker: TalkerConfig, text: PhoneTextConfig, spec: PromptSpec, tokenizer: IncrementalTokenizer
) -> PromptPlan | NeedsText:
    """Prompt of the embedded voice: the speaker row, then text that is `audio_delay_frames` ahead of the audio.

    `spec.layout` has no effect. The pad token consists of phone 0, which marks the end of the text.
    """
    if spec.instruct or spec.speaker_vector or spec.reference_text or spec.reference_frames:
        raise UnsupportedError(
            "the embedded voice only has built-in speakers: instructions and voice cloning need an official model",
            field="voice",
        )
    resolve_language(talker, spec.language, spec.speaker)
    delay = text.audio_delay_frames
    if len(tokenizer.tokens) <= delay and not tokenizer.ended:
        return NeedsText(delay + 1)
    pad: TextToken = (0,) * text.tables
    next_text_index = min(delay + 1, len(tokenizer.tokens))
    ahead = [*tokenizer.tokens[:next_text_index], *[pad] * (delay + 1 - next_text_index)]
    rows = [PromptRow(code=resolve_speaker(talker, spec.speaker))]
    rows += [PromptRow(text=token, code=talker.ids.pad) for token in ahead[:delay]]
    rows.append(PromptRow(text=ahead[delay], code=talker.ids.bos))
    return PromptPlan(
        rows=tuple(rows),
        fixed_prefix_len=1,
        next_text_index=next_text_index,
        leading_tokens=(),
        trailing_tokens=(),
        pad_token=pad,
    )


def _is_english(talker: TalkerConfig) -> bool:
    return isinstance(talker.text, PhoneTextConfig) and talker.text.front_end.startswith("english")
