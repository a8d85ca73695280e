"""Convert the options of a request into the engine's `SpeechRequest`: resolve names, load the reference recording.

Shared by all protocols. Errors that need no computation are raised here, before the engine receives the request.
Recordings are decoded in a thread.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator
from dataclasses import replace

from legato.api import CloneReference, Legato
from legato.engine.request import Reference, SpeechRequest
from legato.errors import ReferenceAudioError, TextTooLongError, UnspeakableTextError, UnsupportedError
from legato.server.bridge import Pool
from legato.server.errors import ApiError
from legato.server.model_names import VoiceChoice
from legato.server.openai.schemas import SpeechOptions, VoiceId
from legato.server.remote_audio import fetch_recording
from legato.server.state import ServerState
from legato.text.characters import is_speakable
from legato.text.prompt import InstructSupport, instruct_support
from legato.types import DEFAULT_PACKET_FRAMES, SAMPLING_FIELDS, SamplingParams, TextLayout

_BASE64_PIECE = 2**20
"""Characters that are decoded at once."""
_TASK_TYPES = {"CustomVoice": "custom_voice", "VoiceDesign": "voice_design", "Base": "base"}
"""`task_type` -> kind of checkpoint."""
_REJECTED_FIELDS = {"speaker_embedding": "send the recording as ref_audio instead"}
"""Fields of other servers that change the audio: ignoring them would silently return something else."""


def check_text(state: ServerState, text: str) -> None:
    """Raise if the text is too long or has nothing to speak."""
    limit = state.config.text_characters
    if len(text) > limit:
        raise TextTooLongError(f"the text has {len(text)} characters: the limit is {limit}", field="text")
    if not any(map(is_speakable, text)):
        raise UnspeakableTextError(
            "the text has nothing to speak: it needs at least one letter, digit or word", field="text"
        )


def check_options(state: ServerState, options: SpeechOptions) -> None:
    """Raise for known fields that the loaded model or this server does not support."""
    if options.word_timestamps and not supports_word_times(state.tts):
        raise UnsupportedError(
            f"a {state.tts.model.config.kind} model has no word timestamps: leave word_timestamps out",
            field="word_timestamps",
        )
    for name in sorted(_REJECTED_FIELDS.keys() & (options.model_extra or {}).keys()):
        raise UnsupportedError(f"{name} is not supported: {_REJECTED_FIELDS[name]}", field=name)


async def build_request(state: ServerState, options: SpeechOptions, recording: bytes | None = None) -> SpeechRequest:
    """Build the engine request. `recording`: an uploaded file to clone; it takes precedence over `ref_audio`."""
    check_options(state, options)
    kind = state.tts.model.config.kind
    if options.task_type and _TASK_TYPES[options.task_type] != kind:
        raise UnsupportedError(
            f"task_type {options.task_type} needs a {options.task_type} checkpoint: "
            f"the loaded model {state.config.model_id!r} is of kind {kind}",
            field="task_type",
        )
    has_reference = bool(recording or options.ref_audio)
    name = options.voice.id if isinstance(options.voice, VoiceId) else options.voice
    # A model without built-in voices that is sent a recording: `voice` is a free label and is not looked up.
    choice = VoiceChoice() if has_reference and not state.names.speakers else state.names.voice(name)
    instructions, notes = _instructions(state, options)
    return SpeechRequest(
        voice=choice.speaker,
        language=options.language,
        instruct=instructions,
        reference=await _reference(state, options, recording, choice),
        sampling=_sampling(state.tts, options),
        layout=_layout(options),
        seed=options.seed,
        packet_frames=_packet_frames(options),
        max_frames=options.max_new_tokens,
        speed=options.speed,
        notes=notes,
    )


def _instructions(state: ServerState, options: SpeechOptions) -> tuple[str, tuple[str, ...]]:
    """The instructions for the engine, and a note if the model takes none.

    Stock clients send instructions to every model, so they are no error: the text is spoken without them.
    """
    config = state.tts.model.config
    if not options.instructions.strip() or instruct_support(config) is not InstructSupport.UNSUPPORTED:
        return options.instructions, ()
    return "", (f"instructions ignored: a {config.kind} model does not support them",)


async def _reference(
    state: ServerState, options: SpeechOptions, recording: bytes | None, choice: VoiceChoice
) -> Reference | None:
    """The encoded reference: from the request's recording, or from the uploaded voice that it names."""
    if recording or options.ref_audio:
        if not supports_cloning(state.tts):
            raise cloning_unsupported(state)
        data = recording or await _load_ref_audio(state, options.ref_audio)
        transcript = "" if options.x_vector_only_mode else options.ref_text
        return await state.bridge.in_thread(Pool.REFERENCE, state.tts.reference, CloneReference(data, transcript))
    if choice.uploaded is not None:
        transcript = "" if options.x_vector_only_mode else options.ref_text or choice.uploaded.transcript
        data = await state.bridge.in_thread(Pool.DISK, state.voices.recording_bytes, choice.uploaded)
        clone = CloneReference(data, transcript)
        return await state.bridge.in_thread(Pool.REFERENCE, state.tts.reference, clone)
    if options.ref_text:
        raise ApiError(400, "invalid_request", "ref_text without ref_audio: send the recording too", param="ref_text")
    return None


def supports_word_times(tts: Legato) -> bool:
    """Whether the loaded model provides word timestamps."""
    return tts.model.config.kind == "embedded"


def supports_cloning(tts: Legato) -> bool:
    """Whether the loaded model can clone voices."""
    return tts.model.config.kind == "base"


def cloning_unsupported(state: ServerState) -> UnsupportedError:
    """The error for a clone request to a model that cannot clone."""
    return UnsupportedError(
        f"{state.config.model_id!r} is a {state.tts.model.config.kind} model and cannot clone voices: "
        "start the server with a Base checkpoint",
        field="clone",
    )


async def _load_ref_audio(state: ServerState, ref_audio: str) -> bytes:
    """The file content of `ref_audio`: base64, a data URL, or (if enabled) a URL to download."""
    limit = state.config.reference_bytes
    if ref_audio.startswith(("http://", "https://")):
        if not state.config.remote_references:
            raise UnsupportedError(
                "this server does not download recordings: upload the file, or send it as base64 or a data URL "
                "(the option --remote-references enables URLs)",
                field="clone",
            )
        domains = state.config.media_domains
        return await state.bridge.in_thread(Pool.FETCH, fetch_recording, ref_audio, limit_bytes=limit, domains=domains)
    data = await state.bridge.in_thread(Pool.PARSE, _decode_base64, ref_audio)
    return check_recording(data, limit)


def check_recording(data: bytes, limit_bytes: int) -> bytes:
    """Return `data`; raise if it is empty or larger than `limit_bytes`."""
    if len(data) > limit_bytes:
        raise ApiError(
            413,
            "too_large",
            f"the recording has {len(data) / 2**20:.1f} MiB: the limit is {limit_bytes / 2**20:.0f} MiB",
            param="ref_audio",
        )
    if not data:
        raise ReferenceAudioError("the recording is empty", field="clone")
    return data


def _decode_base64(text: str) -> bytes:
    if text.startswith("data:"):
        header, comma, text = text.partition(",")
        if not comma or not header.endswith(";base64"):
            raise ReferenceAudioError(
                "the data URL of ref_audio must be base64: data:audio/wav;base64,...", field="clone"
            )
    try:
        return b"".join(_decoded_pieces(text))
    except (binascii.Error, ValueError) as error:
        raise ReferenceAudioError("ref_audio is neither base64 nor a data URL", field="clone") from error


def _decoded_pieces(text: str) -> Iterator[bytes]:
    """Decode piece by piece: one call for everything would hold the interpreter's lock for too long."""
    left = ""
    for start in range(0, len(text), _BASE64_PIECE):
        piece = left + "".join(text[start : start + _BASE64_PIECE].split())
        whole = len(piece) // 4 * 4 if start + _BASE64_PIECE < len(text) else len(piece)
        left = piece[whole:]
        decoded = base64.b64decode(piece[:whole], validate=True)
        if left and len(decoded) != whole // 4 * 3:
            raise ValueError("padding inside")
        yield decoded


def _sampling(tts: Legato, options: SpeechOptions) -> SamplingParams | None:
    overrides = {name: getattr(options, name) for name in SAMPLING_FIELDS if getattr(options, name) is not None}
    return replace(tts.default_sampling(), **overrides) if overrides else None


def _layout(options: SpeechOptions) -> TextLayout | None:
    if options.non_streaming_mode is None:
        return None
    return TextLayout.WHOLE if options.non_streaming_mode else TextLayout.STREAMING


def _packet_frames(options: SpeechOptions) -> tuple[int, ...] | None:
    """Packet sizes: `packet_frames` if set; else `first_packet_frames`, then larger packets; else None (gapless)."""
    if options.packet_frames is not None:
        return tuple(options.packet_frames)
    first = options.first_packet_frames
    if not first:
        return None
    return (first, *(frames for frames in DEFAULT_PACKET_FRAMES[1:] if frames > first))
