"""Record types that `--records` writes. Plain values, documented in `docs/bench.md`.

Each type checks its consistency on construction: stages and unaccounted time add up to the start of playback, and the
samples of the pieces to the total.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from legato.bench.environment import Machine, ModelInfo
from legato.engine.stats import STAGES

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

REQUEST, TRANSPORT, PLAYOUT = "request", "encode and transport", "playout"
ENGINE_STAGES = tuple(name for name, _, _ in STAGES)
ALL_STAGES = (REQUEST, *ENGINE_STAGES, TRANSPORT, PLAYOUT)
"""Contiguous stages from the client's call to the start of playback."""
LM_STAGES = ENGINE_STAGES[:-1]
"""The stages before the codec. Their sum is the time until all frames of the first packet exist."""
OUTCOMES_WITHOUT_AUDIO = ("refused", "failed", "empty")
ROUNDING_MS = 0.02
"""Times are rounded to the microsecond and about ten of them are summed."""
SAMPLING = "sampling"
MIB = 2**20


@dataclass(frozen=True, slots=True)
class IncludedWork:
    """Work that the times of a request include."""

    text_front_end: bool
    reference_encoding: bool
    device_copies: bool


@dataclass(frozen=True, slots=True)
class RequestInfo:
    """A request and the load under which it was sent.

    `number` identifies the request within one load pattern: the same number has the same text and seed in every run.
    `run`: number of the process. `cold`: first request of its process. `loop`: "closed" (each of `concurrency` clients
    sends its next request when the last one is finished) or "open" (arrivals at `rate_hz`, independent of responses).
    `text_tokens_per_s`: rate at which text is sent; 0 sends the whole text immediately. `prebuffer_ms`: audio that the
    client buffers before playback.
    """

    number: int
    run: int
    seed: int
    cold: bool
    transport: str
    loop: str
    concurrency: int
    rate_hz: float
    text_tokens_per_s: float
    input_characters: int
    layout: str
    packet_frames: tuple[int, ...]
    max_frames: int
    prebuffer_ms: float
    max_num_seqs: int
    included: IncludedWork


@dataclass(frozen=True, slots=True)
class AudioMetrics:
    """Metrics of a served request. Times are milliseconds since the client's call unless stated otherwise.

    `stages_ms` has the keys of `ALL_STAGES`. `first_sound_ms`: start of playback. `unaccounted_ms`: part of it that no
    stage covers. `first_packet_ms`: TTFA in the engine, from receipt of the request to samples on the host.
    `first_audible_ms`: playback of the first audible sample. `leading_silence_ms`: audio before that sample.
    `text_stall_ms`: time spent waiting for text after the first frame. `arrived_ms`, `piece_samples`: arrival time and
    size of each piece. `underruns`, `underrun_ms`: number and total duration of underruns. `real_time_factor`:
    processing time per second of audio, from admission to the last packet, without text stalls.
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
    text_stall_ms: float
    arrived_ms: tuple[float, ...]
    piece_samples: tuple[int, ...]
    underruns: int
    underrun_ms: float
    real_time_factor: float

    def __post_init__(self) -> None:
        if list(self.stages_ms) != [name for name in ALL_STAGES if name in self.stages_ms]:
            raise ValueError(f"stages_ms has {', '.join(self.stages_ms)}; the stages are {', '.join(ALL_STAGES)}")
        total = sum(self.stages_ms.values()) + self.unaccounted_ms
        if not math.isclose(total, self.first_sound_ms, abs_tol=ROUNDING_MS):
            raise ValueError(
                f"stages and unaccounted_ms add up to {total:.3f}, but first_sound_ms is {self.first_sound_ms}"
            )
        if len(self.arrived_ms) != len(self.piece_samples) or sum(self.piece_samples) != self.samples:
            raise ValueError("piece_samples do not add up to samples, or differ in number from arrived_ms")
        if any(later < earlier for earlier, later in pairwise(self.arrived_ms)):
            raise ValueError("arrived_ms is not in order of time")

    @property
    def lm_ms(self) -> float:
        """Time of talker and code predictor: from receipt until all frames of the first packet are generated."""
        return sum(self.stages_ms.get(name, 0.0) for name in LM_STAGES)

    @property
    def codec_ms(self) -> float:
        """Time of the codec for the first packet, until its samples are on the host."""
        return self.stages_ms.get(ENGINE_STAGES[-1], 0.0)

    @property
    def frame_ms(self) -> float | None:
        """Mean time of a frame after the first piece, codec and transport included. None if there is one piece."""
        later_frames = (self.samples - self.piece_samples[0]) * self.frames / self.samples
        return (self.arrived_ms[-1] - self.arrived_ms[0]) / later_frames if later_frames else None

    def gapless_ms(self, sample_rate_hz: int) -> float:
        """Gapless TTFA at the client: the earliest start of playback without an underrun, since the client's call.

        Waits for the client's own text count.
        """
        played_ms, start_ms = 0.0, 0.0
        for arrived_ms, samples in zip(self.arrived_ms, self.piece_samples, strict=True):
            start_ms = max(start_ms, arrived_ms - played_ms)
            played_ms += 1000 * samples / sample_rate_hz
        return start_ms

    @property
    def gaps_ms(self) -> tuple[float, ...]:
        """Inter-chunk gaps."""
        return tuple(later - earlier for earlier, later in pairwise(self.arrived_ms))


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """One request. `audio` is None if the request produced no audio.

    `outcome`: finish reason, or "refused" or "failed" (with `error_code`), or "empty" if the model generated no frame.
    `at_s`: time of the request since the start of its load pattern. `batch_rows`: mean talker batch size during the
    pattern. `peak_bytes`: peak memory so far. `synchronized`: the device was synchronized at the end of every stage.
    """

    machine: Machine
    model: ModelInfo
    request: RequestInfo
    at_s: float
    outcome: str
    error_code: str
    synchronized: bool
    batch_rows: float
    peak_bytes: int
    audio: AudioMetrics | None

    def __post_init__(self) -> None:
        if (self.audio is None) != (self.outcome in OUTCOMES_WITHOUT_AUDIO):
            raise ValueError(
                f"outcome {self.outcome!r} is inconsistent with {'no ' if self.audio is None else ''}audio"
            )


@dataclass(frozen=True, slots=True)
class SideCostRecord:
    """An `operation` measured separately; in a request it is part of `stage`. `times_ms`: time of each repetition."""

    machine: Machine
    model: ModelInfo
    operation: str
    stage: str
    times_ms: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.times_ms:
            raise ValueError("times_ms is empty")


@dataclass(frozen=True, slots=True)
class BatchRecord:
    """Throughput of one batch size in one mode.

    Rates of talker, predictor and codec are frames per second of compute time of that part. `other_s`: scheduling, text
    front end, and sampling of first codes. `slot_bytes`: KV slot and codec state of one stream. `peak_bytes`: peak
    memory so far, including weights.
    """

    machine: Machine
    model: ModelInfo
    packet_frames: tuple[int, ...]
    max_seq_len: int
    mode: str
    streams: int
    frames: int
    talker_frames_per_s: float
    predictor_frames_per_s: float
    codec_frames_per_s: float
    total_frames_per_s: float
    audio_s_per_s: float
    prefill_s: float
    other_s: float
    total_s: float
    slot_bytes: int
    peak_bytes: int


@dataclass(frozen=True, slots=True)
class MemoryRecord:
    """Memory after one `stage`: `private_bytes` of the process (of the device on CUDA), `mapped_bytes` of mapped files.

    The engine is configured for `streams` streams and `kv_slots` slots of `max_seq_len` positions.
    """

    machine: Machine
    model: ModelInfo
    streams: int
    kv_slots: int
    max_seq_len: int
    stage: str
    private_bytes: int
    mapped_bytes: int


@dataclass(frozen=True, slots=True)
class ContentionRecord:
    """One run of one stream with `threads` threads, while `busy_processes` processes keep one core each busy.

    `total_s`: duration of the whole run, with prefill and codec. `real_time_factor`: `total_s` per second of audio.
    """

    machine: Machine
    model: ModelInfo
    packet_frames: tuple[int, ...]
    round: int
    busy_processes: int
    threads: int
    frames: int
    total_s: float
    real_time_factor: float


@dataclass(frozen=True, slots=True)
class ReadBandwidth:
    """Bandwidth of reading `working_set_mib` repeatedly."""

    working_set_mib: int
    bytes_per_s: float


@dataclass(frozen=True, slots=True)
class GemmThroughput:
    """Throughput of large GEMMs in `dtype`; a multiply-add counts as 2 FLOPs."""

    dtype: str
    flops_per_s: float


@dataclass(frozen=True, slots=True)
class Roofline:
    """The measured limits of the machine. `reads` is in order of working set size."""

    reads: tuple[ReadBandwidth, ...]
    gemm: tuple[GemmThroughput, ...]

    def bytes_per_s(self, working_set_bytes: int) -> float:
        """Bandwidth at the largest measured size that is at most `working_set_bytes`. Never too low for that size."""
        fitting = [each for each in self.reads if each.working_set_mib * MIB <= working_set_bytes]
        return (fitting[-1] if fitting else self.reads[0]).bytes_per_s

    def flops_per_s(self, dtype: str) -> float:
        """GEMM throughput in `dtype`."""
        return next(each.flops_per_s for each in self.gemm if each.dtype == dtype)


@dataclass(frozen=True, slots=True)
class StepTiming:
    """One part at one size. `part`: talker, code predictor, codec, or sampling (included in the first two).

    Times are for one call with all `rows`. The limits are the times for the bytes and FLOPs of the step at the measured
    roofline; 0 for sampling.
    """

    part: str
    rows: int
    window_frames: int
    context_positions: int
    repetitions: int
    median_ms: float
    p10_ms: float
    p90_ms: float
    weight_bytes: int
    state_bytes: int
    flops: int
    memory_limit_ms: float
    compute_limit_ms: float

    @property
    def limit_ms(self) -> float:
        """Lower bound of the step's time."""
        return max(self.memory_limit_ms, self.compute_limit_ms)

    @property
    def frames_per_s(self) -> float:
        """Frames per second of all rows together."""
        return 1000 * self.rows * self.window_frames / self.median_ms


@dataclass(frozen=True, slots=True)
class EngineStepTiming:
    """One engine step in which each of `rows` streams generates a frame, split by kind of work.

    `gemm_ms` and `other_kernels_ms` are kernels of the models. Outside of them: `copies_ms`, `sampling_ms`, and
    `host_ms` (Python, operator dispatch, scheduling).
    """

    rows: int
    steps: int
    step_ms: float
    gemm_ms: float
    other_kernels_ms: float
    copies_ms: float
    sampling_ms: float
    host_ms: float

    @property
    def overhead(self) -> float:
        """Fraction of the step outside the kernels of the models."""
        return (self.copies_ms + self.sampling_ms + self.host_ms) / self.step_ms


@dataclass(frozen=True, slots=True)
class RooflineRecord:
    """The limits of the machine when the steps were measured."""

    machine: Machine
    roofline: Roofline


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One step of one model."""

    machine: Machine
    model: ModelInfo
    step: StepTiming


@dataclass(frozen=True, slots=True)
class EngineStepRecord:
    """One engine step with one model."""

    machine: Machine
    model: ModelInfo
    engine_step: EngineStepTiming


RECORD_TYPES: Mapping[str, type[DataclassInstance]] = {
    "request": RequestRecord,
    "side_cost": SideCostRecord,
    "batch": BatchRecord,
    "roofline": RooflineRecord,
    "step": StepRecord,
    "engine_step": EngineStepRecord,
    "memory": MemoryRecord,
    "contention": ContentionRecord,
}
"""The record type of each `kind` in a file of records."""

Records = Sequence["DataclassInstance"]
