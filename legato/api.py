"""The Python interface: `load` a checkpoint, `stream` packets or `say` a whole text.

A `Legato` owns one engine from `load` to `close`. All methods may be called from any thread; streams are independent.
"""

from __future__ import annotations

import asyncio
import threading
import warnings
from collections.abc import AsyncIterable, Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from legato.audio.reference import load_reference
from legato.backends.base import Backend
from legato.backends.fingerprint import NumericsFingerprint, numerics_fingerprint
from legato.backends.select import load_backend
from legato.config.deprecation import accept_old_names
from legato.config.engine import EngineConfig
from legato.engine.engine import Engine
from legato.engine.flow_control import BACKGROUND, UNLIMITED, FlowControl
from legato.engine.frontend import create_front_end
from legato.engine.handle import OpenedStream
from legato.engine.heartbeat import EngineHealth
from legato.engine.request import Reference, SpeechRequest, default_sampling, merge_sampling, resolve_request
from legato.engine.stats import EngineSnapshot
from legato.engine.stream import StreamEvent
from legato.engine.text_source import TextSource, check_text_source
from legato.engine.voice_cache import VoiceCache
from legato.errors import InputError
from legato.speech import Speech, Stream
from legato.types import SamplingOptions, SamplingParams, TextLayout
from legato.weights.hub import locate
from legato.weights.loading import Progress

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = ["CloneReference", "Legato", "Speech", "Stream", "Voice", "load"]

Recording = str | Path | bytes | npt.NDArray[np.float32]
"""A recording of a voice: a path, the bytes of an audio file, or float32 mono samples [N] at the model's rate."""


@dataclass(frozen=True, slots=True)
class CloneReference:
    """The recording of a voice to clone.

    `transcript` is the text spoken in it. With a transcript the model continues the recording, which reproduces the
    voice most closely; without one, the clone uses only a speaker vector. `append_silence_s` seconds of silence are
    appended, so that the last sound of the recording does not run into the new speech.
    """

    audio: Recording
    transcript: str = ""
    append_silence_s: float = 0.5


@dataclass(frozen=True, slots=True)
class Voice:
    """A built-in voice. `dialect` is the name of its Chinese dialect, or "" if it has none."""

    name: str
    dialect: str


if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if name == "VoiceInfo":
            warnings.warn("VoiceInfo is deprecated: use Voice", DeprecationWarning, stacklevel=2)
            return Voice
        raise AttributeError(f"module 'legato.api' has no attribute {name!r}")


class Legato:
    """A loaded model with its engine. Use it as a context manager, or call `close`."""

    @accept_old_names(settle="synchronize")
    def __init__(
        self, backend: Backend, config: EngineConfig, *, synchronize: Callable[[], None] = lambda: None
    ) -> None:
        """`synchronize` waits for the device after each phase of an engine step, so that phases can be measured."""
        self.backend = backend
        self.model = model = backend.model
        self.config = config
        self._front_end = create_front_end(model)
        self._voices = VoiceCache(
            backend.decoder, model.encoder, model.speaker_encoder, limit_bytes=config.voice_cache_bytes
        )
        self._engine = Engine(backend, self._front_end, config, synchronize=synchronize)
        self._fingerprint: NumericsFingerprint | None = None
        self._fingerprint_lock = threading.Lock()

    @property
    def sample_rate_hz(self) -> int:
        """Sample rate of all output."""
        return self.model.config.codec.sample_rate_hz

    def voices(self) -> list[Voice]:
        """The built-in voices; empty for models whose voices are cloned or described."""
        talker = self.model.config.talker
        return [Voice(name, talker.dialects.get(name, "")) for name in talker.speakers]

    @property
    def supports_speed(self) -> bool:
        """True if `speed` may differ from 1."""
        return self._front_end.supports_speed

    @property
    def changes_speed(self) -> bool:
        """Deprecated: use `supports_speed`."""
        warnings.warn("changes_speed is deprecated: use supports_speed", DeprecationWarning, stacklevel=2)
        return self.supports_speed

    def default_sampling(self) -> SamplingParams:
        """The sampling parameters of the checkpoint. Change some with `dataclasses.replace`."""
        return default_sampling(self.model.config)

    @accept_old_names(demand="flow_control")
    def stream(
        self,
        text: TextSource,
        *,
        voice: str = "",
        language: str = "auto",
        instruct: str = "",
        clone: CloneReference | Recording | None = None,
        ref_text: str = "",
        seed: int = 0,
        packet_frames: tuple[int, ...] | None = None,
        max_frames: int = 0,
        layout: TextLayout | None = None,
        speed: float = 1.0,
        flow_control: FlowControl = UNLIMITED,
        sampling: SamplingParams | None = None,
        **options: Unpack[SamplingOptions],
    ) -> Stream:
        """Synthesize `text` and return its packets as a stream.

        Args:
            text: A string, or an iterable or async iterable of pieces of text, cut anywhere.
            voice: A built-in voice; "" is the first one.
            language: "auto" or a language of the model.
            instruct: Description of the speaking style, or with a voice-design model of the voice.
            clone: The voice to clone (Base models): a `CloneReference`, or only its audio.
            ref_text: The transcript of `clone`.
            seed: Seed of the sampler. The same request with the same seed gives the same codes.
            packet_frames: Frames (80 ms) of the first, second, ... packet; the last number repeats. None: the smallest
                first packet after which a listener hears no gap, as far as the model is fast enough.
            max_frames: Frame limit of the stream; 0 computes a limit from the text.
            layout: Text before the first frame, or one token per frame; None selects the model's default.
            speed: Tempo, for models that support it.
            flow_control: How far generation may run ahead of playback (`legato.engine.flow_control`).
            sampling: Sampling parameters; None selects the checkpoint's.
            options: Individual sampling parameters that override those of `sampling`.

        Raises:
            InputError: The request is invalid. Errors of the text itself are raised by the iteration.
            QueueFullError: Too many streams are waiting.
        """
        check_text_source(text)
        request = SpeechRequest(
            voice=voice,
            language=language,
            instruct=instruct,
            reference=self._clone_reference(clone, ref_text),
            sampling=merge_sampling(self.model.config, options, sampling),
            layout=layout,
            seed=seed,
            packet_frames=packet_frames,
            max_frames=max_frames,
            flow_control=flow_control,
            speed=speed,
        )
        opened = self.open(request, whole_text=isinstance(text, str))
        stream = Stream(opened.handle, opened.notes, self.sample_rate_hz)
        stream.feed(text)
        return stream

    def open(
        self, request: SpeechRequest, *, whole_text: bool, deliver: Callable[[StreamEvent], None] | None = None
    ) -> OpenedStream:
        """Submit a stream and return its handle, through which the text is added. Used by servers.

        `whole_text`: the text will be added in one piece, which selects the default layout. `deliver` receives the
        packets on the engine thread, see `Engine.submit`; without it they are read from the handle.
        """
        resolved = resolve_request(request, self.model.config, self._front_end, self._voices, whole_text=whole_text)
        return OpenedStream(self._engine.submit(resolved.request, deliver), resolved.notes)

    def stats(self) -> EngineSnapshot:
        """Counters of the engine since it was loaded."""
        return self._engine.stats()

    def fingerprint(self) -> NumericsFingerprint:
        """The numerics fingerprint: under equal ones, equal requests give equal codes.

        The first call reads the checkpoint's files, which takes about a second per GiB; it may block for that long.
        """
        with self._fingerprint_lock:
            if self._fingerprint is None:
                self._fingerprint = numerics_fingerprint(self._engine.runner.backend)
            return self._fingerprint

    def say(
        self,
        text: TextSource,
        *,
        voice: str = "",
        language: str = "auto",
        instruct: str = "",
        clone: CloneReference | Recording | None = None,
        ref_text: str = "",
        seed: int = 0,
        max_frames: int = 0,
        layout: TextLayout | None = None,
        speed: float = 1.0,
        sampling: SamplingParams | None = None,
        **options: Unpack[SamplingOptions],
    ) -> Speech:
        """Synthesize `text` and return the complete utterance. The arguments are those of `stream`.

        The call blocks. An async iterable raises `InputError` on a running event loop: use `async for` over `stream`.
        """
        if isinstance(text, AsyncIterable) and _on_event_loop():
            raise InputError(
                "say() would block the event loop that produces the text: use `async for packet in tts.stream(...)`",
                field="text",
            )
        stream = self.stream(
            text,
            voice=voice,
            language=language,
            instruct=instruct,
            clone=clone,
            ref_text=ref_text,
            seed=seed,
            max_frames=max_frames,
            layout=layout,
            speed=speed,
            flow_control=BACKGROUND,
            sampling=sampling,
            **options,
        )
        return stream.speech()

    def health(self) -> EngineHealth:
        """State of the engine thread and age of its current step; never waits for the engine."""
        return self._engine.health()

    def close(self, *, drain: bool = False) -> bool:
        """Stop the engine. Active streams are cancelled, or with `drain` finish the text that they already have.

        Returns False if the engine does not stop because an engine step hangs.
        """
        return self._engine.close(drain=drain)

    def __enter__(self) -> Legato:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def reference(self, clone: CloneReference) -> Reference:
        """Read and check the recording, resample it to the model's rate, and append the silence."""
        samples = load_reference(clone.audio, self.sample_rate_hz)
        silence = np.zeros(round(clone.append_silence_s * self.sample_rate_hz), dtype=np.float32)
        return Reference(np.concatenate([samples, silence]), clone.transcript)

    def _clone_reference(self, clone: CloneReference | Recording | None, ref_text: str) -> Reference | None:
        if clone is None:
            if ref_text:
                raise InputError("ref_text is the transcript of clone: pass both", field="ref_text")
            return None
        if not isinstance(clone, CloneReference):
            return self.reference(CloneReference(clone, ref_text))
        if ref_text and clone.transcript:
            raise InputError("clone already has a transcript: do not pass ref_text", field="ref_text")
        return self.reference(replace(clone, transcript=ref_text or clone.transcript))


@accept_old_names(slots="max_num_seqs", positions="max_seq_len", queue="max_queue", graphs="cuda_graphs")
def load(
    model: str | Path = "embedded",
    *,
    revision: str | None = None,
    device: str = "cpu",
    dtype: str = "auto",
    codec_dtype: str = "auto",
    quant: str | None = None,
    config: EngineConfig | None = None,
    max_num_seqs: int | None = None,
    max_seq_len: int | None = None,
    max_queue: int | None = None,
    yield_s: float | None = None,
    deterministic: bool | None = None,
    cuda_graphs: bool | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> Legato:
    """Load a checkpoint and start its engine.

    Args:
        model: "embedded" (ships with Legato), a folder, or a hub id such as `Qwen/Qwen3-TTS-12Hz-0.6B-Base`.
        revision: Branch, tag or commit of a model on the hub; default: main.
        device: "cpu", "cuda" or "cuda:N".
        dtype: "float32", "bfloat16" or "auto" (float32 on a CPU, bfloat16 on CUDA), for talker and code predictor.
        codec_dtype: The same for the codec; "auto" is float32, or with default quantization bfloat16 on CPUs that
            multiply it.
        quant: "none", "int8", "int4" or "auto": quantization of the weights of talker and code predictor. None is
            "auto" on a CPU for checkpoints of 0.6B and more, else "none".
        config: All settings of the engine. The arguments below set one field each and cannot be combined with it.
        max_num_seqs: Streams that generate at the same time.
        max_seq_len: Prompt positions and frames of one sequence.
        max_queue: Streams that may wait for a slot.
        yield_s: Idle time after which a stream gives its slot to a waiting one.
        deterministic: Bit-identical output for the same request and seed, for every batch composition.
        cuda_graphs: On CUDA, capture the work of a step as CUDA graphs.
        progress: Called with the progress of downloading and loading.

    Raises:
        InputError: An argument is invalid.
        CheckpointError: The checkpoint is missing, incomplete or not supported; the message names the cause.
    """
    engine_config = _engine_config(
        config,
        max_num_seqs=max_num_seqs,
        max_seq_len=max_seq_len,
        max_queue=max_queue,
        yield_s=yield_s,
        deterministic=deterministic,
        cuda_graphs=cuda_graphs,
    )
    backend = load_backend(
        locate(model, revision=revision, progress=progress),
        device=device,
        dtype=dtype,
        codec_dtype=codec_dtype,
        quant=quant,
        progress=progress,
    )
    return Legato(backend, engine_config)


def _engine_config(config: EngineConfig | None, **fields: float | None) -> EngineConfig:
    """`config`, or the default config with the `fields` that are not None. Passing both is an `InputError`."""
    given = {name: value for name, value in fields.items() if value is not None}
    if config is None:
        return EngineConfig(**given)  # type: ignore[arg-type]
    if given:
        name = next(iter(given))
        raise InputError(f"{name} cannot be combined with config: set it in config", field=name)
    return config


def _on_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
