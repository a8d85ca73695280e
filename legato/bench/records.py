"""The record of one request, of which every percentile, table and plot is made. Values only; no clock and no engine.

`docs/bench.md` explains each field. A record that contradicts itself is refused when it is made and when it is read:
its stages and what they leave unaccounted must add up to the first sound, and its pieces to its samples.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

from legato.bench.facts import Machine, ModelFacts
from legato.engine.stats import STAGES

REQUEST, TRANSPORT, PLAYOUT = "request", "encode and transport", "playout"
ENGINE_STAGES = tuple(name for name, _, _ in STAGES)
ALL_STAGES = (REQUEST, *ENGINE_STAGES, TRANSPORT, PLAYOUT)
"""From the client's call to the first sound, in order, each from where the one before ended."""
LM_STAGES = ENGINE_STAGES[:-1]
"""What comes before the codec: their sum is the time until all frames of the first window exist."""
WITHOUT_SOUND = ("refused", "failed", "empty")
ROUNDING_MS = 0.02
"""Times are kept to the microsecond, and a dozen of them are added."""


@dataclass(frozen=True, slots=True)
class Inside:
    """What the times of a request contain."""

    text_front_end: bool
    reference_encoding: bool
    device_copies: bool


@dataclass(frozen=True, slots=True)
class Asked:
    """What was asked of whom, and beside how many others.

    `number` counts the requests of one setting: the same number means the same text and seed in another run. `run`
    counts processes. `cold`: the first request of its process. `loop`: "closed" (each of `concurrency` clients asks
    again when it is answered) or "open" (arrivals at `rate_hz`, whoever is still busy). `text_tokens_s`: the pace of
    the text, 0 where it came at once. `start_ms`: sound that the client collects before it plays.
    """

    number: int
    run: int
    seed: int
    cold: bool
    transport: str
    loop: str
    concurrency: int
    rate_hz: float
    text_tokens_s: float
    input_characters: int
    layout: str
    packet_frames: tuple[int, ...]
    max_frames: int
    start_ms: float
    slots: int
    inside: Inside

    def __post_init__(self) -> None:
        if not self.packet_frames:
            raise ValueError("packet_frames is empty, and a first packet has a size")


@dataclass(frozen=True, slots=True)
class Sound:
    """What came of a request that was served, in milliseconds since the client asked unless a name says otherwise.

    `stages_ms` are those of `ALL_STAGES`; `unaccounted_ms` is what is left of `first_sound_ms`. `first_packet_ms` runs
    from the engine's receipt to samples on the host. `first_audible_ms`: when the first audible sample plays.
    `leading_silence_ms`: sound before it. `arrived_ms` and `piece_samples`: when which part of the sound reached the
    client. `underruns`: how often, and how long in all, the listener ran dry. `real_time_factor`: seconds of work for
    each second of sound, from admission to the last packet, without waits for text.
    """

    input_tokens: int
    frames: int
    samples: int
    stages_ms: dict[str, float]
    unaccounted_ms: float
    first_packet_ms: float
    first_sound_ms: float
    first_audible_ms: float
    leading_silence_ms: float
    later_text_wait_ms: float
    arrived_ms: tuple[float, ...]
    piece_samples: tuple[int, ...]
    underruns: int
    underrun_ms: float
    real_time_factor: float

    def __post_init__(self) -> None:
        if list(self.stages_ms) != [name for name in ALL_STAGES if name in self.stages_ms]:
            raise ValueError(f"stages_ms has {', '.join(self.stages_ms)}; the stages are {', '.join(ALL_STAGES)}")
        whole = sum(self.stages_ms.values()) + self.unaccounted_ms
        if not math.isclose(whole, self.first_sound_ms, abs_tol=ROUNDING_MS):
            raise ValueError(f"the stages and unaccounted_ms make {whole:.3f}, first_sound_ms is {self.first_sound_ms}")
        if len(self.arrived_ms) != len(self.piece_samples) or sum(self.piece_samples) != self.samples:
            raise ValueError("the pieces are not the samples")
        if any(later < earlier for earlier, later in pairwise(self.arrived_ms)):
            raise ValueError("arrived_ms goes back in time")

    @property
    def lm_ms(self) -> float:
        """Receipt until all frames of the first window exist: what talker and code predictor did."""
        return sum(self.stages_ms.get(name, 0.0) for name in LM_STAGES)

    @property
    def codec_ms(self) -> float:
        """The first window, from its frames to its samples on the host."""
        return self.stages_ms.get(ENGINE_STAGES[-1], 0.0)

    @property
    def frame_ms(self) -> tuple[float, ...]:
        """What a frame after the first piece took, codec and transport included; nothing where there is one piece."""
        later_frames = (self.samples - self.piece_samples[0]) * self.frames / self.samples
        return ((self.arrived_ms[-1] - self.arrived_ms[0]) / later_frames,) if later_frames else ()

    @property
    def gaps_ms(self) -> tuple[float, ...]:
        """Between one piece and the next."""
        return tuple(later - earlier for earlier, later in pairwise(self.arrived_ms))


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """One request. `sounds` holds one `Sound`, or none where nothing was spoken.

    `outcome`: the finish reason, or "refused" or "failed" with `error_code`, or "empty": the model ended at once.
    `at_s`: when it was asked, since its setting began. `batch_rows`: mean rows of the talker's calls in its setting.
    `peak_bytes`: the most memory by its end. `settled`: the device was waited for at the end of every stage.
    """

    machine: Machine
    model: ModelFacts
    asked: Asked
    at_s: float
    outcome: str
    error_code: str
    settled: bool
    batch_rows: float
    peak_bytes: int
    sounds: tuple[Sound, ...]

    def __post_init__(self) -> None:
        if len(self.sounds) != (self.outcome not in WITHOUT_SOUND):
            raise ValueError(f"outcome {self.outcome!r} does not go with {len(self.sounds)} sounds")


@dataclass(frozen=True, slots=True)
class BatchRecord:
    """One batch size in one mode, all streams started together. Rates are frames for a second of the part's own time.

    `other_s`: the loop itself, the text front end and drawing the first codes. `slot_bytes`: talker positions and codec
    history of one stream. `peak_bytes`: the most that was in use up to here, weights included.
    """

    machine: Machine
    model: ModelFacts
    packet_frames: tuple[int, ...]
    positions: int
    mode: str
    streams: int
    frames: int
    talker_frames_s: float
    predictor_frames_s: float
    codec_frames_s: float
    total_frames_s: float
    audio_s_per_s: float
    prefill_s: float
    other_s: float
    total_s: float
    slot_bytes: int
    peak_bytes: int
