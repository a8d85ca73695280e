"""What a run of checks is about: one loaded model, how deep to look, and the seed of all that is drawn.

Lives for one run; the model is loaded once and never copied as a whole. Knows no check.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from legato.config.engine import EngineConfig
from legato.config.quantization import NONE
from legato.engine.frontend import FrontEnd, front_end_of
from legato.engine.resolve import Reference, SpeechRequest, resolve
from legato.engine.stream import StreamRequest
from legato.engine.voices import VoiceStore
from legato.flow import TextLayout
from legato.models.load import LoadedModel
from legato.verify.lines import Where
from legato.verify.partitions import ALL, ESSENTIAL
from legato.verify.tolerance import SHARE

PAST = 310
"""Frames of the long decode: the official package cuts at 300, and so do engines modelled on it."""

POSITIONS = 256
"""Talker positions of a slot in the checks of whole streams."""


@dataclass(frozen=True, slots=True)
class Depth:
    """Sizes of the checks, and what to call them. Frames are codec steps, positions are the talker's.

    `small_window_frames`: how far the decoder goes in windows of a few frames, which cost most; a decode in windows
    equals the first frames of the whole, however long that is. `layer_frames` must exceed the attention window, or a
    layer that forgets would not be noticed.
    """

    name: str = "full"
    decode_frames: int = PAST
    small_window_frames: int = PAST
    partitions: tuple[str, ...] = ALL
    layer_frames: int = PAST
    talker_positions: int = 330
    predictor_rows: int = 12
    company: int = 4
    speech_frames: int = 16
    text_cuts: int = 40


FULL = Depth()
QUICK = Depth(
    "quick",
    small_window_frames=100,
    partitions=ESSENTIAL,
    layer_frames=80,
    talker_positions=100,
    predictor_rows=4,
    company=3,
    speech_frames=8,
    text_cuts=8,
)


@dataclass(frozen=True, slots=True)
class Subject:
    """The model under test and the settings of the run. `graphs`: on CUDA the work of an engine is recorded."""

    model: LoadedModel
    front_end: FrontEnd
    voices: VoiceStore
    depth: Depth
    seed: int
    graphs: bool = True

    @staticmethod
    def of(model: LoadedModel, depth: Depth, seed: int, *, graphs: bool = True) -> Subject:
        """The model with its front end and an empty store of voices."""
        voices = VoiceStore(model.decoder, model.encoder, model.speaker_encoder, limit_bytes=2**28)
        return Subject(model, front_end_of(model), voices, depth, seed, graphs)

    @property
    def device(self) -> torch.device:
        return self.model.talker.codec_head.weight.device

    @property
    def talker_dtype(self) -> torch.dtype:
        return self.model.talker.codec_head.weight.dtype

    @property
    def codec_dtype(self) -> torch.dtype:
        return self.model.decoder.dtype

    @property
    def frame_samples(self) -> int:
        return self.model.decoder.frame_samples

    @property
    def language_sharp(self) -> bool:
        """True where talker and predictor round nothing coarser than float32: neither values nor products."""
        return self.model.quant == NONE and self.talker_dtype in SHARE

    @property
    def language_format(self) -> str:
        """In what talker and predictor compute: a dtype, and how their weights are rounded."""
        name = dtype_name(self.talker_dtype)
        return name if self.model.quant == NONE else f"{name}, {self.model.quant} weights"

    @property
    def sharp(self) -> bool:
        """True where talker, predictor and codec are wide enough that rounding decides no draw in practice."""
        return self.language_sharp and self.codec_dtype in SHARE

    def at_codec(self, path: str, *, batch: int = 1) -> Where:
        """Where a line about the codec was computed."""
        return Where(str(self.device), dtype_name(self.codec_dtype), batch, path)

    def at_talker(self, path: str, *, batch: int = 1) -> Where:
        """Where a line about talker or code predictor was computed."""
        return Where(str(self.device), self.language_format, batch, path)

    def at_engine(self, path: str, *, batch: int) -> Where:
        """Where a line about whole streams was computed."""
        names = dict.fromkeys((self.language_format, dtype_name(self.codec_dtype)))
        return Where(str(self.device), "/".join(names), batch, path)

    def codes(self, frames: int, *, salt: int, rows: int = 1) -> torch.Tensor:
        """Fixed codes [rows, frames, Q], uniform over the codebooks; another `salt` gives others."""
        config = self.model.decoder.config
        generator = torch.Generator().manual_seed(1000 * self.seed + salt)
        drawn = torch.randint(config.codebook_size, (rows, frames, config.num_quantizers), generator=generator)
        return drawn.to(self.device)

    def engine_config(self, *, streams: int, deterministic: bool, prefill_positions: int = 16) -> EngineConfig:
        """Slots for short texts and no more, so that an official model's cache stays small."""
        return EngineConfig(
            streams=streams,
            kv_slots=streams,
            positions=POSITIONS,
            prefill_positions=prefill_positions,
            deterministic=deterministic,
            graphs=self.graphs,
        )

    def request(
        self,
        seed: int,
        *,
        packets: tuple[int, ...] = (1, 2, 4),
        layout: TextLayout | None = None,
        transcript: str = "",
        max_frames: int = 0,
    ) -> StreamRequest:
        """A request as a client would make it. Base checkpoints clone the fixed recording."""
        kind = self.model.config.kind
        asked = SpeechRequest(
            instruct="A calm, low voice." if kind == "voice_design" else "",
            reference=Reference(self.reference(), transcript) if kind == "base" else None,
            layout=layout,
            seed=1000 * self.seed + seed,
            packet_frames=packets,
            max_frames=max_frames or self.depth.speech_frames,
        )
        return resolve(asked, self.model.config, self.front_end, self.voices, whole_text=True).request

    def reference(self, *, salt: int = 0) -> npt.NDArray[np.float32]:
        """A fixed recording for clones, 1.2 s: a gliding tone with overtones and a little noise."""
        rate_hz = self.model.config.codec.sample_rate_hz
        time_s = np.arange(round(1.2 * rate_hz)) / rate_hz
        drawn = np.random.Generator(np.random.PCG64([self.seed, 77, salt]))
        base_hz = 110.0 + 60.0 * drawn.random()
        phase = 2 * np.pi * base_hz * (time_s + 0.2 * time_s**2)
        wave = sum(np.sin(k * phase) / k for k in (1, 2, 3, 5)) + 0.05 * drawn.standard_normal(len(time_s))
        return np.asarray(0.2 * wave, dtype=np.float32)


def dtype_name(dtype: torch.dtype) -> str:
    """`float32`, not `torch.float32`."""
    return str(dtype).removeprefix("torch.")
