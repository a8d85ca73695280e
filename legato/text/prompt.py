"""Ids and a voice -> `PromptPlan`: what the talker reads before its first frame, and what is fed after each frame.

Owns the layouts of the official models (plain, in-context clone; text whole or streaming), that of the embedded voice,
the language tag with its dialect rule, and the check of names. Pure functions over ids: knows no tensors, no tokenizer,
no engine. Layouts are those of the official package 0.1.1 (`generate` of its 12 Hz model), rebuilt as data: no text is
wrapped in a chat template and sliced again.
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
from legato.flow import NeedsText, PromptPlan, PromptRow, PromptSpec, TextLayout, TextToken, TextTrack

AUTO = "auto"
WHOLE_TEXT = sys.maxsize
"""`NeedsText.tokens` where the prompt holds all of the text: only the end of the track will do."""

_DIALECT_HOME = "chinese"


class Instructions(Enum):
    """What a model does with an instruction on how to speak."""

    USED = "used"
    IGNORED = "ignored"
    """The official 0.6B CustomVoice takes no instruction; the official package drops it without a word."""
    REFUSED = "refused"


# --- names -----------------------------------------------------------------------------------------------------------


def allowed_languages(talker: TalkerConfig) -> tuple[str, ...]:
    """What a caller may ask for: "auto" and the model's languages. Dialects follow from the speaker, not from here."""
    if talker.language_ids is None:
        return (AUTO, "english") if _is_english(talker) else (AUTO,)
    return (AUTO, *sorted(name for name in talker.language_ids.languages if "dialect" not in name))


def resolve_language(talker: TalkerConfig, language: str, speaker: str) -> str:
    """The language whose tag is written: "auto", a language, or the speaker's dialect.

    Any case is accepted. "auto" and "chinese" become the dialect of a speaker who has one. Raises
    `UnknownLanguageError` with the allowed names.
    """
    name = language.strip().lower() or AUTO
    allowed = allowed_languages(talker)
    if name not in allowed:
        raise UnknownLanguageError(
            f"language {language!r} is not one that this model speaks; allowed: {', '.join(allowed)}", field="language"
        )
    dialect = talker.dialects.get(speaker.strip().lower())
    return dialect if dialect is not None and name in (AUTO, _DIALECT_HOME) else name


def resolve_speaker(talker: TalkerConfig, speaker: str) -> int:
    """The row of the codec embedding for a speaker's name, in any case. Raises `UnknownVoiceError` with the names."""
    name = speaker.strip().lower()
    if name not in talker.speakers:
        names = ", ".join(sorted(talker.speakers)) or "none (this model has no built-in speakers)"
        raise UnknownVoiceError(f"speaker {speaker!r} is not in this model; allowed: {names}", field="voice")
    return talker.speakers[name]


def instructions(config: ModelConfig) -> Instructions:
    """Whether the model follows an instruction, drops it (say so to the caller), or cannot be given one."""
    if config.kind == "voice_design":
        return Instructions.USED
    if config.kind == "custom_voice":
        return Instructions.IGNORED if config.size == "0b6" else Instructions.USED
    return Instructions.REFUSED


# --- plan ------------------------------------------------------------------------------------------------------------


def plan_prompt(talker: TalkerConfig, spec: PromptSpec, track: TextTrack) -> PromptPlan | NeedsText:
    """The prompt for `spec` and the text of `track`, as soon as the track has what the prompt itself holds.

    The plan is the same whenever it is asked for, however the text arrives. Raises `UnspeakableTextError` for a track
    that ended empty, `UnknownLanguageError`, `UnknownVoiceError`, and `UnsupportedError` for a spec that the model's
    text side does not have.
    """
    if track.ended and not track.tokens:
        raise UnspeakableTextError("the text has nothing that can be spoken", field="text")
    if isinstance(talker.text, PhoneTextConfig):
        return _aligned(talker, talker.text, spec, track)
    if talker.language_ids is None:
        raise StateError("a talker with a BPE text side has language ids")
    header = _header(talker, talker.text, talker.language_ids, spec)
    if spec.reference_frames:
        body = _clone_whole if spec.layout is TextLayout.WHOLE else _clone_streaming
        return body(talker, talker.text, header, spec, track)
    if spec.reference_text:
        raise UnsupportedError("a reference transcript needs the reference's codes", field="reference_text")
    plain = _plain_whole if spec.layout is TextLayout.WHOLE else _plain_streaming
    return plain(talker, talker.text, header, track)


def _header(
    talker: TalkerConfig, text: BpeTextConfig, languages: LanguageIds, spec: PromptSpec
) -> tuple[PromptRow, ...]:
    """Instruct block and role block, text alone; then the tag block: language, speaker and pad over pads and BOS."""
    if spec.speaker and spec.speaker_vector:
        raise UnsupportedError("a voice is a speaker's name or a speaker vector, not both", field="voice")
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
    """One text token with the codec's BOS; the rest, one a frame, then the end of text."""
    if not track.tokens:
        return NeedsText(1)
    first = PromptRow(text=track.tokens[0], code=talker.ids.bos)
    return _plan(text, (*header, first), settled=len(header), consumed=1, end_of_text=True)


def _plain_whole(
    talker: TalkerConfig, text: BpeTextConfig, header: tuple[PromptRow, ...], track: TextTrack
) -> PromptPlan | NeedsText:
    """All text and its end over codec pads, then the codec's BOS."""
    if not track.ended:
        return NeedsText(WHOLE_TEXT)
    tokens = (*track.tokens, (text.eos_id,))
    body = tuple(PromptRow(text=token, code=talker.ids.pad) for token in tokens)
    start = PromptRow(text=(text.pad_id,), code=talker.ids.bos)
    return _plan(text, (*header, *body, start), settled=len(header), consumed=len(track.tokens))


def _clone_streaming(
    talker: TalkerConfig, text: BpeTextConfig, header: tuple[PromptRow, ...], spec: PromptSpec, track: TextTrack
) -> PromptPlan | NeedsText:
    """Transcript and text laid over BOS and the reference's frames; what does not fit follows, one token a frame."""
    length = 1 + spec.reference_frames
    room = max(0, length - len(spec.reference_text))
    if len(track.tokens) < room and not track.ended:
        return NeedsText(room)
    consumed = min(room, len(track.tokens))
    over = [*spec.reference_text[:length], *track.tokens[:consumed]]
    if fits := len(over) < length:  # all text ended before the reference did: its end is in the prompt too
        over += [(text.eos_id,)]
        over += [(text.pad_id,)] * (length - len(over))
    rows = _over_reference(talker, over)
    return _plan(
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
    """Transcript, text and end over codec pads, then BOS and the reference's frames over text pads."""
    if not track.ended:
        return NeedsText(WHOLE_TEXT)
    tokens = (*spec.reference_text, *track.tokens, (text.eos_id,))
    body = tuple(PromptRow(text=token, code=talker.ids.pad) for token in tokens)
    rows = _over_reference(talker, [(text.pad_id,)] * (1 + spec.reference_frames))
    settled = len(header) + len(spec.reference_text)
    return _plan(text, (*header, *body, *rows), settled=settled, consumed=len(track.tokens))


def _over_reference(talker: TalkerConfig, over: Iterable[TextToken]) -> tuple[PromptRow, ...]:
    """Text tokens over the codec's BOS (first) and the reference's frames."""
    return tuple(
        PromptRow(text=token, reference_frame=i - 1) if i else PromptRow(text=token, code=talker.ids.bos)
        for i, token in enumerate(over)
    )


def _plan(
    text: BpeTextConfig,
    rows: tuple[PromptRow, ...],
    *,
    settled: int,
    consumed: int,
    feed_before: tuple[TextToken, ...] = (),
    end_of_text: bool = False,
) -> PromptPlan:
    after: tuple[TextToken, ...] = ((text.eos_id,),) if end_of_text else ()
    return PromptPlan(rows, settled, consumed, feed_before, after, pad=(text.pad_id,))


def _aligned(talker: TalkerConfig, text: PhoneTextConfig, spec: PromptSpec, track: TextTrack) -> PromptPlan | NeedsText:
    """The embedded voice: the speaker, then text ahead of the sound by `audio_delay_frames`. Both layouts are this one.

    Phone 0 ends a track; it fills all tables of the pad.
    """
    if spec.instruct or spec.speaker_vector or spec.reference_text or spec.reference_frames:
        raise UnsupportedError(
            "the embedded voice has its own speakers alone: instructions and clones need an official model",
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
    return PromptPlan(tuple(rows), settled=1, consumed=consumed, feed_before=(), feed_after=(), pad=pad)


def _is_english(talker: TalkerConfig) -> bool:
    return isinstance(talker.text, PhoneTextConfig) and talker.text.front_end.startswith("english")
