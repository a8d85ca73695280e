"""The model under test, the sizes of the checks, and the seed of all random inputs.

A `Target` lives for one run. It holds one loaded model and never copies it as a whole.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from legato.backends.base import Backend
from legato.config.engine import EngineConfig
from legato.config.quantization import NONE
from legato.engine.frontend import FrontEnd, create_front_end
from legato.engine.request import Reference, SpeechRequest, resolve_request
from legato.engine.stream import StreamRequest
from legato.engine.voice_cache import VoiceCache
from legato.errors import StateError
from legato.types import DEFAULT_PACKET_FRAMES, TextLayout
from legato.verify.compare import RELATIVE_LIMIT
from legato.verify.results import ExecutionInfo
from legato.weights.loading import LoadedModel

RANDOM_SIZES = (1, 2, 3, 7, 16, 40, 90)
ESSENTIAL = ("windows of 1", "windows of 4", "random windows")
"""Single frames, the engine's packet size, and random sizes."""
SMALL = ("windows of 1", "windows of 4")
"""Partitions into many short calls."""
ALL = (*ESSENTIAL, "windows of 25", "two windows")

LONG_DECODE_FRAMES = 310
"""Frames of the long decode. The official package splits at 300 frames, and so do engines modelled on it."""

MAX_SEQ_LEN = 256
"""Talker positions per KV slot in checks of whole streams."""


@dataclass(frozen=True, slots=True)
class Depth:
    """Sizes of the checks. Frames are codec frames, positions are talker positions.

    `small_window_frames`: frames decoded in windows of a few frames, which are the slowest to check. Their samples are
    compared with the start of the whole decode. `layer_frames` must exceed the attention window; otherwise a layer that
    loses its history would pass. `co_batched_streams`: streams in one batch.
    """

    name: str = "full"
    decode_frames: int = LONG_DECODE_FRAMES
    small_window_frames: int = LONG_DECODE_FRAMES
    partitions: tuple[str, ...] = ALL
    layer_frames: int = LONG_DECODE_FRAMES
    talker_positions: int = 330
    predictor_rows: int = 12
    co_batched_streams: int = 4
    speech_frames: int = 16
    text_splits: int = 40


FULL = Depth()
QUICK = Depth(
    "quick",
    small_window_frames=100,
    partitions=ESSENTIAL,
    layer_frames=80,
    talker_positions=100,
    predictor_rows=4,
    co_batched_streams=3,
    speech_frames=8,
    text_splits=8,
)


@dataclass(frozen=True, slots=True)
class Target:
    """The backend under test and the settings of the run. `cuda_graphs`: engines on CUDA replay graphs."""

    backend: Backend
    front_end: FrontEnd
    voices: VoiceCache
    depth: Depth
    seed: int
    cuda_graphs: bool = True

    @staticmethod
    def of(backend: Backend, depth: Depth, seed: int, *, cuda_graphs: bool = True) -> Target:
        """The backend with the front end of its model and an empty voice cache.

        Raises `StateError` for a backend whose reference weights were released: checks compute the expected results
        with them.
        """
        model = backend.model
        modules = (model.talker, model.code_predictor, model.decoder)
        if any(parameter.is_meta for module in modules for parameter in module.parameters()):
            raise StateError("the reference weights were released: load the backend with keep_reference=True")
        voices = VoiceCache(backend.decoder, model.encoder, model.speaker_encoder, limit_bytes=2**28)
        return Target(
            backend=backend,
            front_end=create_front_end(model),
            voices=voices,
            depth=depth,
            seed=seed,
            cuda_graphs=cuda_graphs,
        )

    @property
    def model(self) -> LoadedModel:
        """The reference modules and the configuration."""
        return self.backend.model

    @property
    def device(self) -> torch.device:
        return self.model.device

    @property
    def talker_dtype(self) -> torch.dtype:
        return self.model.language_dtype

    @property
    def codec_dtype(self) -> torch.dtype:
        return self.model.decoder.dtype

    @property
    def frame_samples(self) -> int:
        return self.model.decoder.frame_samples

    @property
    def talker_full_precision(self) -> bool:
        """True if talker and code predictor run in float32 or float64 without quantized weights."""
        return self.model.quant == NONE and self.talker_dtype in RELATIVE_LIMIT

    @property
    def talker_format(self) -> str:
        """Dtype and weight quantization of talker and code predictor, for the report."""
        name = dtype_name(self.talker_dtype)
        return name if self.model.quant == NONE else f"{name}, {self.model.quant} weights"

    @property
    def full_precision(self) -> bool:
        """True if talker, code predictor and codec are precise enough that rounding changes no sampled code."""
        return self.talker_full_precision and self.codec_dtype in RELATIVE_LIMIT

    def codec_execution(self, path: str, *, batch: int = 1) -> ExecutionInfo:
        """Execution of a codec check."""
        return ExecutionInfo(str(self.device), dtype_name(self.codec_dtype), batch, path)

    def talker_execution(self, path: str, *, batch: int = 1) -> ExecutionInfo:
        """Execution of a talker or code predictor check."""
        return ExecutionInfo(str(self.device), self.talker_format, batch, path)

    def engine_execution(self, path: str, *, batch: int) -> ExecutionInfo:
        """Execution of a check of whole streams."""
        names = dict.fromkeys((self.talker_format, dtype_name(self.codec_dtype)))
        return ExecutionInfo(str(self.device), "/".join(names), batch, path)

    def random_codes(self, frames: int, *, salt: int, rows: int = 1) -> torch.Tensor:
        """Random codes [rows, frames, Q], uniform over each codebook and fixed by seed and `salt`."""
        config = self.model.decoder.config
        generator = torch.Generator().manual_seed(1000 * self.seed + salt)
        codes = torch.randint(config.codebook_size, (rows, frames, config.num_quantizers), generator=generator)
        return codes.to(self.device)

    def engine_config(self, *, max_num_seqs: int, deterministic: bool, prefill_positions: int = 16) -> EngineConfig:
        """Engine settings for short texts. Few slots keep the KV cache of an official model small."""
        return EngineConfig(
            max_num_seqs=max_num_seqs,
            kv_slots=max_num_seqs,
            max_seq_len=MAX_SEQ_LEN,
            prefill_positions=prefill_positions,
            deterministic=deterministic,
            cuda_graphs=self.cuda_graphs,
        )

    def request(
        self,
        seed: int,
        *,
        packets: tuple[int, ...] = DEFAULT_PACKET_FRAMES,
        layout: TextLayout | None = None,
        transcript: str = "",
        max_frames: int = 0,
    ) -> StreamRequest:
        """A request as a client would make it. Base checkpoints clone the reference recording."""
        kind = self.model.config.kind
        speech = SpeechRequest(
            instruct="A calm, low voice." if kind == "voice_design" else "",
            reference=Reference(self.reference(), transcript) if kind == "base" else None,
            layout=layout,
            seed=1000 * self.seed + seed,
            packet_frames=packets,
            max_frames=max_frames or self.depth.speech_frames,
        )
        return resolve_request(speech, self.model.config, self.front_end, self.voices, whole_text=True).request

    def reference(self, *, salt: int = 0) -> npt.NDArray[np.float32]:
        """A synthetic reference recording, 1.2 s: a gliding tone with overtones and a little noise."""
        rate_hz = self.model.config.codec.sample_rate_hz
        time_s = np.arange(round(1.2 * rate_hz)) / rate_hz
        generator = np.random.Generator(np.random.PCG64([self.seed, 77, salt]))
        base_hz = 110.0 + 60.0 * generator.random()
        phase = 2 * np.pi * base_hz * (time_s + 0.2 * time_s**2)
        wave = sum(np.sin(k * phase) / k for k in (1, 2, 3, 5)) + 0.05 * generator.standard_normal(len(time_s))
        return np.asarray(0.2 * wave, dtype=np.float32)


def dtype_name(dtype: torch.dtype) -> str:
    """`float32`, not `torch.float32`."""
    return str(dtype).removeprefix("torch.")


def partitions(frames: int, seed: int) -> dict[str, list[int]]:
    """Window sizes of each partition by name; each list sums to `frames`."""
    return {
        "windows of 1": equal_windows(frames, 1),
        "windows of 4": equal_windows(frames, 4),
        "windows of 25": equal_windows(frames, 25),
        "random windows": random_windows(frames, seed),
        "two windows": [frames - frames // 3, frames // 3],
    }


def equal_windows(frames: int, size: int) -> list[int]:
    """Windows of `size`; the last one may be shorter."""
    sizes = [size] * (frames // size)
    if frames % size:
        sizes.append(frames % size)
    return sizes


def random_windows(frames: int, seed: int) -> list[int]:
    """Windows of random sizes from `RANDOM_SIZES`."""
    generator = random.Random(seed)
    sizes: list[int] = []
    while sum(sizes) < frames:
        sizes.append(min(generator.choice(RANDOM_SIZES), frames - sum(sizes)))
    return sizes
