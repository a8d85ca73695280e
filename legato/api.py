"""The Python face: `load` a checkpoint, `stream` packets or `say` a whole text.

A `Legato` owns one engine from `load` to `close`. All of it may be called from any thread; streams are independent.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from legato.audio.reference import load_reference
from legato.config.engine import EngineConfig
from legato.config.quantization import NONE
from legato.engine.demand import BACKGROUND, UNLIMITED, Demand
from legato.engine.engine import Engine
from legato.engine.frontend import front_end_of
from legato.engine.handle import Opened, StreamHandle
from legato.engine.resolve import Reference, SamplingOptions, SpeechRequest, chosen_sampling, default_sampling, resolve
from legato.engine.stats import EngineSnapshot, StreamTiming
from legato.engine.stream import StreamEvent
from legato.engine.voices import VoiceStore
from legato.errors import InputError
from legato.flow import FinishReason, Packet, Sampling, TextLayout
from legato.models.load import LoadedModel, Progress, load_model
from legato.models.locate import locate

if TYPE_CHECKING:
    from typing_extensions import Unpack

DTYPES = ("auto", "float32", "bfloat16")


@dataclass(frozen=True, slots=True)
class CloneReference:
    """The recording of a voice to clone: a file, its bytes, or float32 mono samples at the model's rate.

    `transcript` is what is said in it. With it the model continues the recording (closest likeness); without it the
    clone uses a speaker vector alone. `append_silence_s` keeps the recording's last sound out of the new speech.
    """

    audio: str | Path | bytes | npt.NDArray[np.float32]
    transcript: str = ""
    append_silence_s: float = 0.5


@dataclass(frozen=True, slots=True)
class VoiceInfo:
    """A built-in voice."""

    name: str
    dialect: str


@dataclass(frozen=True, slots=True)
class Speech:
    """A whole utterance: float32 samples in [-1, 1], why it ended, and when its stages happened."""

    samples: npt.NDArray[np.float32]
    sample_rate_hz: int
    frames: int
    finish_reason: FinishReason
    timing: StreamTiming

    @property
    def seconds(self) -> float:
        return len(self.samples) / self.sample_rate_hz


class Stream:
    """The packets of one utterance, in order; also the way to cancel it and to see its timing and notes."""

    def __init__(self, handle: StreamHandle, notes: tuple[str, ...]) -> None:
        self.timing = handle.timing
        self.notes = notes
        self._handle = handle

    def __iter__(self) -> Iterator[Packet]:
        """Packets until the last; leaving the loop early cancels the stream."""
        try:
            for packet in self._handle:
                yield packet
                if packet.last and self._handle.source_errors:
                    raise self._handle.source_errors[0]
        finally:
            self._handle.cancel()

    async def __aiter__(self) -> AsyncIterator[Packet]:
        """The same for an event loop, which is never blocked; no thread is used."""
        try:
            async for packet in self._handle:
                yield packet
                if packet.last and self._handle.source_errors:
                    raise self._handle.source_errors[0]
        finally:
            self._handle.cancel()

    @property
    def budget_frames(self) -> int:
        """The text-scaled limit in force where `max_frames` is 0; 0 where speech ends with its text track instead."""
        return self._handle.budget_frames

    def cancel(self) -> None:
        """Stop generating; the iteration ends with an empty last packet."""
        self._handle.cancel()

    def feed(self, text: str | Iterable[str]) -> None:
        """Give the text: at once, or in pieces from an iterable that a thread of its own reads as they come."""
        self._handle.feed(text)


class Legato:
    """A loaded model that speaks. Use as a context manager, or call `close`."""

    def __init__(self, model: LoadedModel, config: EngineConfig, *, settle: Callable[[], None] = lambda: None) -> None:
        """`settle` waits for the device after each part of a turn, where somebody measures the parts."""
        self.model = model
        self.config = config
        self._front_end = front_end_of(model)
        self._voices = VoiceStore(
            model.decoder, model.encoder, model.speaker_encoder, limit_bytes=config.voice_cache_bytes
        )
        self._engine = Engine(model, self._front_end, config, settle=settle)

    @property
    def sample_rate_hz(self) -> int:
        """Rate of all samples."""
        return self.model.config.codec.sample_rate_hz

    def voices(self) -> list[VoiceInfo]:
        """The built-in voices; none where voices are cloned or described."""
        talker = self.model.config.talker
        return [VoiceInfo(name, talker.dialects.get(name, "")) for name in talker.speakers]

    @property
    def changes_speed(self) -> bool:
        """Whether `speed` can be other than 1."""
        return self._front_end.changes_speed

    def default_sampling(self) -> Sampling:
        """How the checkpoint's makers draw codes."""
        return default_sampling(self.model.config)

    def stream(
        self,
        text: str | Iterable[str],
        *,
        voice: str = "",
        language: str = "auto",
        instruct: str = "",
        clone: CloneReference | None = None,
        seed: int = 0,
        packet_frames: tuple[int, ...] = (1, 2, 4),
        max_frames: int = 0,
        layout: TextLayout | None = None,
        speed: float = 1.0,
        demand: Demand = UNLIMITED,
        **sampling: Unpack[SamplingOptions],
    ) -> Stream:
        """Speak `text`, given whole or in pieces as they come, and yield its packets as they are made.

        `voice`: a built-in voice ("": the first). `instruct`: how to speak, or which voice to design. `max_frames`:
        your limit in frames of 80 ms (0: a budget scaled to the text). `packet_frames`: frames of the first, second,
        ... packet. `speed`: tempo, where the model has control of it. `demand`: how far ahead of its reader the stream
        may run (`legato.engine.demand`). What can be refused without the text is refused here with an `InputError`;
        what is wrong with the text is raised by the iteration.
        """
        asked = SpeechRequest(
            voice=voice,
            language=language,
            instruct=instruct,
            reference=self.reference(clone) if clone is not None else None,
            sampling=chosen_sampling(self.model.config, sampling),
            layout=layout,
            seed=seed,
            packet_frames=packet_frames,
            max_frames=max_frames,
            demand=demand,
            speed=speed,
        )
        opened = self.open(asked, whole_text=isinstance(text, str))
        stream = Stream(opened.handle, opened.notes)
        stream.feed(text)
        return stream

    def open(
        self, asked: SpeechRequest, *, whole_text: bool, deliver: Callable[[StreamEvent], None] | None = None
    ) -> Opened:
        """Submit a stream whose text is still to be given through its handle; a server's way in.

        `whole_text`: the text will come at once, which decides the default layout. `deliver` takes the packets, see
        `Engine.submit`; without it they are read from the handle.
        """
        resolved = resolve(asked, self.model.config, self._front_end, self._voices, whole_text=whole_text)
        return Opened(self._engine.submit(resolved.request, deliver), resolved.notes)

    def stats(self) -> EngineSnapshot:
        """What the engine did since it was loaded."""
        return self._engine.stats()

    def say(
        self,
        text: str | Iterable[str],
        *,
        voice: str = "",
        language: str = "auto",
        instruct: str = "",
        clone: CloneReference | None = None,
        seed: int = 0,
        max_frames: int = 0,
        layout: TextLayout | None = None,
        speed: float = 1.0,
        **sampling: Unpack[SamplingOptions],
    ) -> Speech:
        """Speak `text` and return all of it; the arguments are those of `stream`."""
        stream = self.stream(
            text,
            voice=voice,
            language=language,
            instruct=instruct,
            clone=clone,
            seed=seed,
            max_frames=max_frames,
            layout=layout,
            speed=speed,
            demand=BACKGROUND,
            **sampling,
        )
        packets = list(stream)
        reason = packets[-1].finish_reason
        assert reason is not None, "the last packet carries the finish reason"
        return Speech(
            samples=np.concatenate([packet.float32() for packet in packets]),
            sample_rate_hz=self.sample_rate_hz,
            frames=sum(packet.frames for packet in packets),
            finish_reason=reason,
            timing=stream.timing,
        )

    def close(self, *, drain: bool = False) -> None:
        """Stop the engine; streams under way end as cancelled, or with `drain` speak the text that they have."""
        self._engine.close(drain=drain)

    def __enter__(self) -> Legato:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def reference(self, clone: CloneReference) -> Reference:
        """The recording as the engine takes it: read, checked, brought to the model's rate, silence appended."""
        samples = load_reference(clone.audio, self.sample_rate_hz)
        silence = np.zeros(round(clone.append_silence_s * self.sample_rate_hz), dtype=np.float32)
        return Reference(np.concatenate([samples, silence]), clone.transcript)


def load(
    model: str | Path = "embedded",
    *,
    device: str = "cpu",
    dtype: str = "auto",
    codec_dtype: str = "auto",
    slots: int = 1,
    positions: int = 2048,
    queue: int = 64,
    quant: str = NONE,
    deterministic: bool = False,
    graphs: bool = True,
    progress: Callable[[Progress], None] | None = None,
) -> Legato:
    """Load a checkpoint: "embedded" (ships with Legato), a folder, or a hub id such as `Qwen/Qwen3-TTS-12Hz-0.6B-Base`.

    `dtype` of talker and code predictor, `codec_dtype` of the codec: "float32", "bfloat16" or "auto" (float32 on a CPU;
    bfloat16 talker and float32 codec on CUDA). `slots`: streams that speak at once. `positions`: prompt and frames
    that one sequence may take. `queue`: streams that may wait for a slot; one more is refused. `quant`: "none", "int8",
    "int4" or "auto" rounds the weights of talker and code predictor (`model.quant_note` says what was taken and why).
    `deterministic`: the same request and seed give the same samples to the bit in any company, on a CPU in float32;
    where torch computes, it costs the gain of batching. `graphs`: on CUDA the work of a step is recorded here, which
    takes seconds, and launched as a whole. Raises `CheckpointError` naming what is missing or wrong.
    """
    for name, value in (("dtype", dtype), ("codec_dtype", codec_dtype)):
        if value not in DTYPES:
            raise InputError(f"{name} must be one of {', '.join(DTYPES)}, not {value!r}", field=name)
    talker_dtype = dtype if dtype != "auto" else ("float32" if device.startswith("cpu") else "bfloat16")
    loaded = load_model(
        locate(model, progress=progress),
        talker_dtype=talker_dtype,
        codec_dtype=codec_dtype if codec_dtype != "auto" else "float32",
        device=device,
        quant=quant,
        progress=progress,
    )
    limits = EngineConfig(streams=slots, kv_slots=slots + 1, positions=positions, queue=queue)
    return Legato(loaded, replace(limits, deterministic=deterministic, graphs=graphs))
