"""What a client wrote -> what the engine is asked: names looked up, the recording of a clone read. Owns nothing.

Shared by all routes. Whatever can be refused here is refused here, before the engine hears of the request; decoding a
recording happens in a thread. Knows no transport.
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import replace

from legato.api import CloneReference, Legato
from legato.engine.resolve import Reference, SpeechRequest
from legato.errors import ReferenceAudioError, TextTooLongError, UnspeakableTextError, UnsupportedError
from legato.flow import Sampling, TextLayout
from legato.server.errors import ApiError
from legato.server.names import VoiceChoice
from legato.server.remote import fetch_recording
from legato.server.schemas import SpeechOptions, VoiceId
from legato.server.state import ServerState
from legato.text.characters import is_speakable

_KINDS = {"CustomVoice": "custom_voice", "VoiceDesign": "voice_design", "Base": "base"}
_SAMPLING = (
    *("temperature", "top_k", "top_p", "repetition_penalty"),
    *("predictor_temperature", "predictor_top_k", "predictor_top_p"),
)
_LATER_PACKETS = (2, 4)
_REFUSED = {"speaker_embedding": "a voice is cloned from its recording; send that as ref_audio"}
"""Fields of others that would change what is heard, so that to ignore them would be to answer something else."""


def check_text(state: ServerState, text: str) -> None:
    """Refuse a text that is too long or has nothing to speak, before any compute."""
    limit = state.config.text_characters
    if len(text) > limit:
        raise TextTooLongError(f"the text has {len(text)} characters, and the limit is {limit}", field="text")
    if not any(map(is_speakable, text)):
        raise UnspeakableTextError(
            "the text has nothing to speak: give at least one word, digit or letter", field="text"
        )


def check_options(state: ServerState, options: SpeechOptions) -> None:
    """Refuse by name what is asked for by a field that is known and cannot be honoured."""
    if options.word_timestamps and not knows_words(state.tts):
        raise UnsupportedError(
            f"a model of the kind {state.tts.model.config.kind} does not know when its words are said: "
            "leave word_timestamps out",
            field="word_timestamps",
        )
    for name in sorted(_REFUSED.keys() & (options.model_extra or {}).keys()):
        raise UnsupportedError(f"{name} is not supported: {_REFUSED[name]}", field=name)


async def build(state: ServerState, options: SpeechOptions, recording: bytes = b"") -> SpeechRequest:
    """The request for the engine. `recording`: an uploaded file to clone, which comes before `ref_audio`."""
    check_options(state, options)
    kind = state.tts.model.config.kind
    if options.task_type and _KINDS[options.task_type] != kind:
        raise UnsupportedError(
            f"task_type {options.task_type} needs a {options.task_type} checkpoint; "
            f"{state.config.model_id!r}, which is loaded, is of the kind {kind}",
            field="task_type",
        )
    inline = bool(recording or options.ref_audio)
    name = options.voice.id if isinstance(options.voice, VoiceId) else options.voice
    choice = VoiceChoice() if inline and not state.names.speakers else state.names.voice(name)
    return SpeechRequest(
        voice=choice.speaker,
        language=options.language,
        instruct=options.instructions,
        reference=await _reference(state, options, recording, choice),
        sampling=_sampling(state.tts, options),
        layout=_layout(options),
        seed=options.seed,
        packet_frames=_packet_frames(options),
        max_frames=options.max_new_tokens,
        speed=options.speed,
    )


async def _reference(
    state: ServerState, options: SpeechOptions, recording: bytes, choice: VoiceChoice
) -> Reference | None:
    transcript = "" if options.x_vector_only_mode else options.ref_text
    if recording or options.ref_audio:
        if not can_clone(state.tts):
            raise cannot_clone(state)
        data = recording or await _recording_of(state, options.ref_audio)
        return await state.bridge.in_thread(state.tts.reference, CloneReference(data, transcript))
    for kept in choice.kept:
        said = "" if options.x_vector_only_mode else options.ref_text or kept.transcript
        clone = CloneReference(state.voices.recording(kept), said)
        return await state.bridge.in_thread(state.tts.reference, clone)
    if options.ref_text:
        raise ApiError(400, "invalid_request", "ref_text is given without ref_audio", param="ref_text")
    return None


def knows_words(tts: Legato) -> bool:
    """Whether the loaded model's front end lays its words out in time."""
    return tts.model.config.kind == "embedded"


def can_clone(tts: Legato) -> bool:
    """Whether the loaded model clones voices."""
    return tts.model.config.kind == "base"


def cannot_clone(state: ServerState) -> UnsupportedError:
    """The refusal where it does not."""
    return UnsupportedError(
        f"{state.config.model_id!r} is a model of the kind {state.tts.model.config.kind}, which clones no voice; "
        "start the server with a Base checkpoint for that",
        field="clone",
    )


async def _recording_of(state: ServerState, ref_audio: str) -> bytes:
    """The bytes behind `ref_audio`: base64, a data URL, or a URL where that is allowed."""
    limit = state.config.reference_bytes
    if ref_audio.startswith(("http://", "https://")):
        if not state.config.remote_references:
            raise UnsupportedError(
                "this server fetches no recordings from URLs: upload it, or send it as base64 or a data URL",
                field="clone",
            )
        return await state.bridge.in_thread(fetch_recording, ref_audio, limit_bytes=limit)
    data = await state.bridge.in_thread(_decoded, ref_audio)
    return checked_recording(data, limit)


def checked_recording(data: bytes, limit_bytes: int) -> bytes:
    """The recording's file, if it is not too large."""
    if len(data) > limit_bytes:
        raise ApiError(
            413,
            "too_large",
            f"the recording has {len(data) / 2**20:.1f} MiB, and the limit is {limit_bytes / 2**20:.0f}",
            param="ref_audio",
        )
    if not data:
        raise ReferenceAudioError("the recording is empty", field="clone")
    return data


def _decoded(text: str) -> bytes:
    if text.startswith("data:"):
        header, comma, text = text.partition(",")
        if not comma or not header.endswith(";base64"):
            raise ReferenceAudioError(
                "the data URL of ref_audio is not base64: data:audio/wav;base64,...", field="clone"
            )
    try:
        return base64.b64decode("".join(text.split()), validate=True)
    except (binascii.Error, ValueError) as error:
        raise ReferenceAudioError(f"ref_audio is neither a data URL nor base64 ({error})", field="clone") from error


def _sampling(tts: Legato, options: SpeechOptions) -> Sampling | None:
    given = {name: getattr(options, name) for name in _SAMPLING if getattr(options, name) is not None}
    return replace(tts.default_sampling(), **given) if given else None


def _layout(options: SpeechOptions) -> TextLayout | None:
    if options.non_streaming_mode is None:
        return None
    return TextLayout.WHOLE if options.non_streaming_mode else TextLayout.STREAMING


def _packet_frames(options: SpeechOptions) -> tuple[int, ...]:
    """The packets' sizes: our own field, else the first one's with ours after it, else the default."""
    first = options.first_packet_frames
    if options.packet_frames is not None:
        return tuple(options.packet_frames)
    if not first:
        return SpeechRequest().packet_frames
    return (first, *(frames for frames in _LATER_PACKETS if frames > first))
