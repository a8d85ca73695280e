"""What a caller asks for -> a `StreamRequest`: names checked, defaults filled in, the clone's voice computed.

Everything that can be refused without the text is refused here, in the caller's thread, before anything is queued. Owns
nothing; knows no slot and no packet.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypedDict

import numpy as np
import numpy.typing as npt

from legato.config.model import ModelConfig
from legato.engine.demand import UNLIMITED, Demand
from legato.engine.framing import PacketPolicy
from legato.engine.frontend import FrontEnd
from legato.engine.stream import StreamRequest
from legato.engine.voices import VoiceStore
from legato.errors import InputError, UnknownVoiceError, UnsupportedError
from legato.flow import PromptSpec, Sampling, TextLayout
from legato.models.voice import Voice
from legato.text.prompt import Instructions, instructions, resolve_language, resolve_speaker


@dataclass(frozen=True, slots=True)
class Reference:
    """The recording of a cloned voice: float32 [N] mono at the codec's rate, and what is said in it ("": not known)."""

    samples: npt.NDArray[np.float32]
    transcript: str = ""


class SamplingOptions(TypedDict, total=False):
    """Sampling values that differ from the checkpoint's own (`legato.flow.Sampling` explains each)."""

    temperature: float
    top_k: int
    top_p: float
    repetition_penalty: float
    predictor_temperature: float
    predictor_top_k: int
    predictor_top_p: float


@dataclass(frozen=True, slots=True)
class SpeechRequest:
    """What a caller may ask for. `None` takes the checkpoint's own sampling or layout; `max_frames` 0 the budget."""

    voice: str = ""
    language: str = "auto"
    instruct: str = ""
    reference: Reference | None = None
    sampling: Sampling | None = None
    layout: TextLayout | None = None
    seed: int = 0
    packet_frames: tuple[int, ...] = (1, 2, 4)
    max_frames: int = 0
    demand: Demand = UNLIMITED
    speed: float = 1.0


@dataclass(frozen=True, slots=True)
class Resolved:
    """The request as the engine takes it, and what the caller should be told about it."""

    request: StreamRequest
    notes: tuple[str, ...]


def resolve(
    asked: SpeechRequest, config: ModelConfig, front_end: FrontEnd, voices: VoiceStore, *, whole_text: bool
) -> Resolved:
    """Check and complete a request. `whole_text`: all text is known already, which decides the default layout."""
    if asked.max_frames < 0:
        raise InputError(
            f"max_frames must be 0 (no limit of your own) or more, not {asked.max_frames}", field="max_frames"
        )
    if not 0 <= asked.seed < 2**64:
        raise InputError(f"seed must be between 0 and 2^64 - 1, not {asked.seed}", field="seed")
    packets = PacketPolicy(tuple(asked.packet_frames))
    speaker = _speaker(asked, config)
    resolve_language(config.talker, asked.language, speaker)
    notes: list[str] = []
    instruct = _instruct(asked, config, front_end, notes)
    voice = _voice(asked, config, front_end, voices, notes)
    spec = PromptSpec(
        language=asked.language,
        speaker=speaker,
        layout=asked.layout or default_layout(config, whole_text=whole_text),
        instruct=instruct,
        speaker_vector=bool(voice),
        reference_text=voice[0].reference_text if voice else (),
        reference_frames=voice[0].frames if voice else 0,
    )
    request = StreamRequest(
        spec=spec,
        sampling=asked.sampling or default_sampling(config),
        seed=asked.seed,
        packets=packets,
        max_frames=asked.max_frames,
        voices=voice,
        demand=asked.demand,
        speed=_speed(asked, config, front_end),
    )
    return Resolved(request, tuple(notes))


def default_layout(config: ModelConfig, *, whole_text: bool) -> TextLayout:
    """The official package's own: whole for built-in and designed voices, streaming for clones; pieces stream."""
    if whole_text and config.kind in ("custom_voice", "voice_design"):
        return TextLayout.WHOLE
    return TextLayout.STREAMING


def default_sampling(config: ModelConfig) -> Sampling:
    """The checkpoint's `generation_config.json`."""
    made = config.generation
    return Sampling(
        temperature=made.temperature,
        top_k=made.top_k,
        top_p=made.top_p,
        repetition_penalty=made.repetition_penalty,
        predictor_temperature=made.predictor_temperature,
        predictor_top_k=made.predictor_top_k,
        predictor_top_p=made.predictor_top_p,
    )


def chosen_sampling(config: ModelConfig, options: SamplingOptions) -> Sampling | None:
    """The checkpoint's own sampling with `options` in place; nothing where there are none. Refuses unknown names."""
    unknown = sorted(set(options) - set(SamplingOptions.__annotations__))
    if unknown:
        raise InputError(
            f"unknown option {unknown[0]!r}; the sampling options are {', '.join(SamplingOptions.__annotations__)}",
            field=unknown[0],
        )
    return replace(default_sampling(config), **options) if options else None


SLOWEST, FASTEST = 0.25, 4.0


def _speed(asked: SpeechRequest, config: ModelConfig, front_end: FrontEnd) -> float:
    """The tempo; 1 is the voice's own."""
    if not SLOWEST <= asked.speed <= FASTEST:
        raise InputError(f"speed must be between {SLOWEST} and {FASTEST:g}, not {asked.speed}", field="speed")
    if asked.speed != 1.0 and not front_end.changes_speed:
        raise UnsupportedError(
            f"a {config.kind} checkpoint has no control of its tempo: leave speed at 1"
            + (", or say it in instruct" if config.kind != "base" else ""),
            field="speed",
        )
    return asked.speed


def _speaker(asked: SpeechRequest, config: ModelConfig) -> str:
    """The speaker's name, lower case; the first one where the caller leaves the choice; "" where the model has none."""
    names = config.talker.speakers
    if config.kind in ("custom_voice", "embedded"):
        if asked.reference is not None:
            raise UnsupportedError(
                f"this is a {config.kind} checkpoint, which speaks with its own voices ({', '.join(sorted(names))}); "
                "load a Base checkpoint to clone one",
                field="clone",
            )
        speaker = asked.voice.strip().lower() or next(iter(names))
        resolve_speaker(config.talker, speaker)
        return speaker
    if asked.voice:
        way = "describe it with instruct" if config.kind == "voice_design" else "give a reference recording to clone"
        raise UnknownVoiceError(f"this {config.kind} checkpoint has no voice {asked.voice!r}: {way}", field="voice")
    return ""


def _instruct(
    asked: SpeechRequest, config: ModelConfig, front_end: FrontEnd, notes: list[str]
) -> tuple[tuple[int, ...], ...]:
    text = asked.instruct.strip()
    if not text:
        if config.kind == "voice_design":
            notes.append("no instruct: this checkpoint makes up a voice of its own, another one for each seed")
        return ()
    match instructions(config):
        case Instructions.REFUSED:
            raise UnsupportedError(f"a {config.kind} checkpoint takes no instruction", field="instruct")
        case Instructions.IGNORED:
            notes.append("this checkpoint ignores instruct (as the official package does)")
            return ()
        case Instructions.USED:
            return front_end.instruct(text)


def _voice(
    asked: SpeechRequest, config: ModelConfig, front_end: FrontEnd, voices: VoiceStore, notes: list[str]
) -> tuple[Voice, ...]:
    reference = asked.reference
    if reference is None:
        if config.kind == "base":
            raise InputError("a base checkpoint has no voice of its own: give a reference recording", field="clone")
        return ()
    transcript = reference.transcript.strip()
    if not transcript:
        notes.append("no transcript of the reference: the clone uses its speaker vector alone")
    return (voices.voice(reference.samples, front_end.reference(transcript) if transcript else ()),)
