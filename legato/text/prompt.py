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
from legato.types import NeedsText, PromptPlan, PromptRow, PromptSpec, TextLayout, TextToken, TextTrack

AUTO = "auto"
WHOLE_TEXT = sys.maxsize
"""`NeedsText.tokens` if the prompt contains the whole text, so the track must have ended."""

_DIALECT_HOME = "chinese"


class Instructions(Enum):
    """How a model handles a style instruction."""

    USED = "used"
    IGNORED = "ignored"
    """The official 0.6B CustomVoice takes no instruction; the official package drops it silently."""
    REFUSED = "refused"


# --- names -----------------------------------------------------------------------------------------------------------


def allowed_languages(talker: TalkerConfig) -> tuple[str, ...]:
    """Languages that a request may use: "auto" and the model's languages. Dialects are selected by the speaker."""
    if talker.language_ids is None:
        return (AUTO, "english") if _is_english(talker) else (AUTO,)
    return (AUTO, *sorted(name for name in talker.language_ids.languages if "dialect" not in name))


def resolve_language(talker: TalkerConfig, language: str, speaker: str) -> str:
    """Language for the tag block: "auto", a language, or the speaker's dialect.

    Case is ignored, and codes such as `en` or `en-US` are accepted. If the speaker has a dialect, "auto" and "chinese"
    become that dialect. Raises `UnknownLanguageError` with the allowed names.
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


def instructions(config: ModelConfig) -> Instructions:
    """How the model handles an instruction. The caller reports `IGNORED` as a note and `REFUSED` as an error."""
    if config.kind == "voice_design":
        return Instructions.USED
    if config.kind == "custom_voice":
        return Instructions.IGNORED if config.size == "0b6" else Instructions.USED
    return Instructions.REFUSED


# --- plan ------------------------------------------------------------------------------------------------------------


def plan_prompt(talker: TalkerConfig, spec: PromptSpec, track: TextTrack) -> PromptPlan | NeedsText:
    """Build the prompt, or return `NeedsText` if the track does not have all text that the prompt contains.

    The plan does not depend on when this is called or how the text arrives. Raises `UnspeakableTextError` if the track
    ended without tokens, `UnknownLanguageError`, `UnknownVoiceError`, and `UnsupportedError` for a spec that the model
    does not support.
    """
    if track.ended and not track.tokens:
        raise UnspeakableTextError("the text contains nothing that can be spoken", field="text")
    if isinstance(talker.text, PhoneTextConfig):
        return _embedded_plan(talker, talker.text, spec, track)
    if talker.language_ids is None:
        raise StateError("talker config with BPE text has no language ids")
    header = _header(talker, talker.text, talker.language_ids, spec)
    if spec.reference_frames:
        body = _clone_whole if spec.layout is TextLayout.WHOLE else _clone_streaming
        return body(talker, talker.text, header, spec, track)
    if spec.reference_text:
        raise UnsupportedError("a reference transcript requires the reference's codes", field="reference_text")
    plain = _plain_whole if spec.layout is TextLayout.WHOLE else _plain_streaming
    return plain(talker, talker.text, header, track)


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
    talker: TalkerConfig, text: BpeTextConfig, header: tuple[PromptRow, ...], track: TextTrack
) -> PromptPlan | NeedsText:
    """The first text token with codec BOS. After the prompt: one token per frame, then end of text."""
    if not track.tokens:
        return NeedsText(1)
    first = PromptRow(text=track.tokens[0], code=talker.ids.bos)
    return _official_plan(text, (*header, first), settled=len(header), consumed=1, end_of_text=True)


def _plain_whole(
    talker: TalkerConfig, text: BpeTextConfig, header: tuple[PromptRow, ...], track: TextTrack
) -> PromptPlan | NeedsText:
    """All text and end of text with codec pads, then codec BOS."""
    if not track.ended:
        return NeedsText(WHOLE_TEXT)
    tokens = (*track.tokens, (text.eos_id,))
    body = tuple(PromptRow(text=token, code=talker.ids.pad) for token in tokens)
    start = PromptRow(text=(text.pad_id,), code=talker.ids.bos)
    return _official_plan(text, (*header, *body, start), settled=len(header), consumed=len(track.tokens))


def _clone_streaming(
    talker: TalkerConfig, text: BpeTextConfig, header: tuple[PromptRow, ...], spec: PromptSpec, track: TextTrack
) -> PromptPlan | NeedsText:
    """Transcript and text added to codec BOS and the reference frames. The rest follows, one token per frame."""
    length = 1 + spec.reference_frames
    text_rows = max(0, length - len(spec.reference_text))
    if len(track.tokens) < text_rows and not track.ended:
        return NeedsText(text_rows)
    consumed = min(text_rows, len(track.tokens))
    tokens = [*spec.reference_text[:length], *track.tokens[:consumed]]
    fits = len(tokens) < length
    if fits:  # all text is in the prompt, so the end of text is, too
        tokens.append((text.eos_id,))
        tokens += [(text.pad_id,)] * (length - len(tokens))
    rows = _reference_rows(talker, tokens)
    return _official_plan(
        text,
        (*header, *rows),
        settled=len(header) + min(len(spec.reference_text), length),
        consumed=consumed,
        feed_before=spec.reference_text[length:],
        end_of_text=not fits,
    )


def _clone_whole(
    talker: TalkerConfig, text: BpeTextConfig, header: tuple[PromptRow, ...], spec: PromptSpec, track: TextTrack
) -> PromptPlan | NeedsText:
    """Transcript, text and end of text with codec pads, then codec BOS and the reference frames with text pads."""
    if not track.ended:
        return NeedsText(WHOLE_TEXT)
    tokens = (*spec.reference_text, *track.tokens, (text.eos_id,))
    body = tuple(PromptRow(text=token, code=talker.ids.pad) for token in tokens)
    rows = _reference_rows(talker, [(text.pad_id,)] * (1 + spec.reference_frames))
    settled = len(header) + len(spec.reference_text)
    return _official_plan(text, (*header, *body, *rows), settled=settled, consumed=len(track.tokens))


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
    settled: int,
    consumed: int,
    feed_before: tuple[TextToken, ...] = (),
    end_of_text: bool = False,
) -> PromptPlan:
    return PromptPlan(
        rows=rows,
        settled=settled,
        consumed=consumed,
        feed_before=feed_before,
        feed_after=((text.eos_id,),) if end_of_text else (),
        pad=(text.pad_id,),
    )


def _embedded_plan(
    talker: TalkerConfig, text: PhoneTextConfig, spec: PromptSpec, track: TextTrack
) -> PromptPlan | NeedsText:
    """Embedded voice: the speaker row, then text that is `audio_delay_frames` ahead of the audio.

    `spec.layout` has no effect. The pad token consists of phone 0, which ends a track.
    """
    if spec.instruct or spec.speaker_vector or spec.reference_text or spec.reference_frames:
        raise UnsupportedError(
            "the embedded voice only has built-in speakers: instructions and voice cloning need an official model",
            field="voice",
        )
    resolve_language(talker, spec.language, spec.speaker)
    delay = text.audio_delay_frames
    if len(track.tokens) <= delay and not track.ended:
        return NeedsText(delay + 1)
    pad: TextToken = (0,) * text.tables
    consumed = min(delay + 1, len(track.tokens))
    ahead = [*track.tokens[:consumed], *[pad] * (delay + 1 - consumed)]
    rows = [PromptRow(code=resolve_speaker(talker, spec.speaker))]
    rows += [PromptRow(text=token, code=talker.ids.pad) for token in ahead[:delay]]
    rows.append(PromptRow(text=ahead[delay], code=talker.ids.bos))
    return PromptPlan(rows=tuple(rows), settled=1, consumed=consumed, feed_before=(), feed_after=(), pad=pad)


def _is_english(talker: TalkerConfig) -> bool:
    return isinstance(talker.text, PhoneTextConfig) and talker.text.front_end.startswith("english")
