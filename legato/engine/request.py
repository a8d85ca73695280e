"""Convert a caller's `SpeechRequest` to a `StreamRequest`: validate, fill in defaults, compute the cloned voice.

Runs in the caller's thread. All errors that do not depend on the text are raised here, before the stream is queued.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from legato.config.model import ModelConfig
from legato.engine.flow_control import UNLIMITED, FlowControl
from legato.engine.frontend import FrontEnd
from legato.engine.packetizer import PacketPolicy
from legato.engine.stream import StreamRequest
from legato.engine.voice_cache import VoiceCache
from legato.errors import InputError, ReferenceAudioError, UnknownVoiceError, UnsupportedError
from legato.models.voice import ClonedVoice
from legato.text.prompt import InstructSupport, instruct_support, resolve_language, resolve_speaker
from legato.types import (
    SAMPLING_FIELDS,
    PromptSpec,
    SamplingOptions,
    SamplingParams,
    TextLayout,
)


@dataclass(frozen=True, slots=True)
class Reference:
    """Recording of a voice to clone: float32 [N] mono at the codec's sample rate. `transcript`: "" if not known."""

    samples: npt.NDArray[np.float32]
    transcript: str = ""


@dataclass(frozen=True, slots=True)
class SpeechRequest:
    """Parameters of a request. None selects the checkpoint's default; `max_frames` 0 computes a limit from the text.

    `packet_frames`: None chooses sizes with which playback has no gap (`PacketPolicy.gapless`).
    `notes`: the caller's own notes on the request, which come before those of the engine.
    """

    voice: str = ""
    language: str = "auto"
    instruct: str = ""
    reference: Reference | None = None
    sampling: SamplingParams | None = None
    layout: TextLayout | None = None
    seed: int = 0
    packet_frames: tuple[int, ...] | None = None
    max_frames: int = 0
    flow_control: FlowControl = UNLIMITED
    speed: float = 1.0
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ResolvedRequest:
    """The request for the engine, and notes for the caller."""

    request: StreamRequest
    notes: tuple[str, ...]


def resolve_request(
    request: SpeechRequest, config: ModelConfig, front_end: FrontEnd, voices: VoiceCache, *, whole_text: bool
) -> ResolvedRequest:
    """Validate a request and fill in defaults. `whole_text`: all text is known, which selects the default layout."""
    _check_types(request)
    if request.max_frames < 0:
        raise InputError(
            f"max_frames must be 0 (automatic limit) or more, not {request.max_frames}", field="max_frames"
        )
    if not 0 <= request.seed < 2**64:
        raise InputError(f"seed must be between 0 and 2^64 - 1, not {str(request.seed)[:40]}", field="seed")
    chosen = request.packet_frames
    packets = PacketPolicy(gapless=True) if chosen is None else PacketPolicy(tuple(chosen))
    speaker = _speaker(request, config)
    resolve_language(config.talker, request.language, speaker)
    notes = list(request.notes)
    instruct = _instruct(request, config, front_end, notes)
    voice = _voice(request, config, front_end, voices, notes)
    spec = PromptSpec(
        language=request.language,
        speaker=speaker,
        layout=request.layout or default_layout(config, whole_text=whole_text),
        instruct=instruct,
        speaker_vector=voice is not None,
        reference_text=voice.reference_text if voice is not None else (),
        reference_frames=voice.frames if voice is not None else 0,
    )
    stream_request = StreamRequest(
        spec=spec,
        sampling=request.sampling or default_sampling(config),
        seed=request.seed,
        packets=packets,
        max_frames=request.max_frames,
        voice=voice,
        flow_control=request.flow_control,
        speed=_speed(request, config, front_end),
    )
    return ResolvedRequest(stream_request, tuple(notes))


def _check_types(request: SpeechRequest) -> None:
    """`InputError` for a value of the wrong type. Some would pass all checks here and raise in a batch."""
    for name in ("voice", "language", "instruct"):
        if not isinstance(getattr(request, name), str):
            raise InputError(f"{name} must be str, not {type(getattr(request, name)).__name__}", field=name)
    whole = {
        "seed": [request.seed],
        "max_frames": [request.max_frames],
        "packet_frames": [*(request.packet_frames or ())],
    }
    for name, values in whole.items():
        for value in values:
            if isinstance(value, bool) or not isinstance(value, int):
                raise InputError(f"{name} must be a whole number, not {str(value)[:40]!r}", field=name)
    if isinstance(request.speed, bool) or not isinstance(request.speed, (int, float)):
        raise InputError(f"speed must be a number, not {str(request.speed)[:40]!r}", field="speed")
    if request.sampling is not None and not isinstance(request.sampling, SamplingParams):
        raise InputError(f"sampling must be SamplingParams, not {type(request.sampling).__name__}", field="sampling")
    if request.reference is not None:
        _check_samples(request.reference.samples)


def _check_samples(samples: npt.NDArray[np.float32]) -> None:
    """`ReferenceAudioError` for an array that is not float32 [N] with finite values."""
    if not isinstance(samples, np.ndarray) or samples.dtype != np.float32 or samples.ndim != 1 or not samples.size:
        raise ReferenceAudioError("the samples of a reference must be a float32 array [N]", field="clone")
    if not np.isfinite(samples).all():
        raise ReferenceAudioError("the samples of the reference have NaN or infinite values", field="clone")


def default_layout(config: ModelConfig, *, whole_text: bool) -> TextLayout:
    """As in the official package: WHOLE for built-in and designed voices, STREAMING for clones and streamed text."""
    if whole_text and config.kind in ("custom_voice", "voice_design"):
        return TextLayout.WHOLE
    return TextLayout.STREAMING


def default_sampling(config: ModelConfig) -> SamplingParams:
    """The sampling parameters in the checkpoint's `generation_config.json`."""
    return config.generation.sampling


def merge_sampling(
    config: ModelConfig, options: SamplingOptions, sampling: SamplingParams | None = None
) -> SamplingParams:
    """`sampling` (default: the checkpoint's) with the fields in `options` replaced. `InputError` for unknown names."""
    unknown = sorted(set(options) - set(SAMPLING_FIELDS))
    if unknown:
        raise InputError(
            f"unknown option {unknown[0]!r}; the sampling options are {', '.join(SAMPLING_FIELDS)}",
            field=unknown[0],
        )
    if sampling is not None and not isinstance(sampling, SamplingParams):
        raise InputError(f"sampling must be SamplingParams, not {type(sampling).__name__}", field="sampling")
    return replace(sampling or default_sampling(config), **options)


MIN_SPEED, MAX_SPEED = 0.25, 4.0


def _speed(request: SpeechRequest, config: ModelConfig, front_end: FrontEnd) -> float:
    """The checked tempo; 1 is the voice's natural tempo."""
    if not MIN_SPEED <= request.speed <= MAX_SPEED:
        raise InputError(f"speed must be between {MIN_SPEED} and {MAX_SPEED:g}, not {request.speed}", field="speed")
    if request.speed != 1.0 and not front_end.supports_speed:
        hint = "" if config.kind == "base" else ", or describe the tempo in instruct"
        raise UnsupportedError(
            f"a {config.kind} checkpoint does not support speed: leave it at 1{hint}",
            field="speed",
        )
    return request.speed


def _speaker(request: SpeechRequest, config: ModelConfig) -> str:
    """The speaker's name in lower case. Default: the first speaker, or "" if the model has no built-in speakers."""
    names = config.talker.speakers
    if config.kind in ("custom_voice", "embedded"):
        if request.reference is not None:
            raise UnsupportedError(
                f"this is a {config.kind} checkpoint, which has built-in voices only ({', '.join(sorted(names))}); "
                "load a Base checkpoint to clone one",
                field="clone",
            )
        speaker = request.voice.strip().lower() or next(iter(names))
        resolve_speaker(config.talker, speaker)
        return speaker
    if request.voice:
        hint = "describe it with instruct" if config.kind == "voice_design" else "give a reference recording to clone"
        raise UnknownVoiceError(f"this {config.kind} checkpoint has no voice {request.voice!r}: {hint}", field="voice")
    return ""


def _instruct(
    request: SpeechRequest, config: ModelConfig, front_end: FrontEnd, notes: list[str]
) -> tuple[tuple[int, ...], ...]:
    text = request.instruct.strip()
    if not text:
        if config.kind == "voice_design":
            notes.append("no instruct: this checkpoint generates a random voice, a different one for each seed")
        return ()
    match instruct_support(config):
        case InstructSupport.UNSUPPORTED:
            raise UnsupportedError(f"a {config.kind} checkpoint does not support instruct", field="instruct")
        case InstructSupport.IGNORED:
            notes.append("this checkpoint ignores instruct (as the official package does)")
            return ()
        case InstructSupport.USED:
            return front_end.encode_instruction(text)


def _voice(
    request: SpeechRequest, config: ModelConfig, front_end: FrontEnd, voices: VoiceCache, notes: list[str]
) -> ClonedVoice | None:
    reference = request.reference
    if reference is None:
        if config.kind == "base":
            raise InputError("a base checkpoint has no built-in voice: give a reference recording", field="clone")
        return None
    transcript = reference.transcript.strip()
    if not transcript:
        notes.append("no transcript of the reference: the clone uses only its speaker vector")
    return voices.get_or_encode(reference.samples, front_end.encode_transcript(transcript) if transcript else ())
