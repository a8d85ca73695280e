"""Time single steps of talker, code predictor and codec, and compare them with the roofline.

The models are called in the same way as by the engine's model runner and codec runner, but without an engine, so that
batch size, window and context are exactly those of the table row.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from legato.backends.base import Backend, FirstCodeInputs, FrameInputs
from legato.bench.environment import ModelInfo
from legato.bench.records import (
    SAMPLING,
    EngineStepRecord,
    EngineStepTiming,
    Roofline,
    RooflineRecord,
    StepRecord,
    StepTiming,
)
from legato.bench.rendering import Plot, ReportTable, stacked_bars
from legato.bench.roofline import StepCost, codec_cost, predictor_cost, talker_cost
from legato.config.quantization import INT4, NONE
from legato.engine.request import default_sampling
from legato.models.sampling import SamplingRows
from legato.models.talker.embed import next_input
from legato.models.talker.state import KVRows, TalkerCache
from legato.weights.loading import LoadedModel

Compute = Callable[[], object]
MIN_REPETITIONS = 3
"""Minimum number of repetitions, also for slow steps."""


@dataclass(frozen=True, slots=True)
class StepSizes:
    """`batches`: rows per call. `windows`: frames per codec window. `context`: earlier positions of each row.

    `seconds`: measuring time per step and size.
    """

    batches: tuple[int, ...] = (1, 2, 4, 8)
    windows: tuple[int, ...] = (1, 4)
    context: int = 128
    seconds: float = 0.5


@dataclass(frozen=True, slots=True)
class StepLimits:
    """The roofline, and the dtypes whose GEMM throughput limits the language models and the codec."""

    roofline: Roofline
    lm_dtype: str
    codec_dtype: str


def step_limits(backend: Backend, roofline: Roofline) -> StepLimits:
    """Select the dtypes in which the GEMMs of `model` are computed.

    Quantized linears compute in int8, except for torch's int4 kernel, which computes in bfloat16.
    """
    model = backend.model
    lm_dtype, codec_dtype = (str(dtype).removeprefix("torch.") for dtype in (model.language_dtype, model.decoder.dtype))
    if model.quant != NONE:
        lm_dtype = "bfloat16" if model.quant == INT4 and not backend.batch_invariance.talker else "int8"
    return StepLimits(roofline, lm_dtype, codec_dtype)


def measure_steps(
    backend: Backend, sizes: StepSizes, limits: StepLimits, synchronize: Callable[[], None]
) -> Iterator[StepTiming]:
    """Time every part at every size, smallest batches first. `synchronize` waits for the device."""
    roofline, lm_dtype = limits.roofline, limits.lm_dtype
    with torch.inference_mode():
        for rows in sizes.batches:
            cache = _cache(backend.model, rows, sizes.context + 1)
            cost = talker_cost(backend, cache, rows=rows, context=sizes.context)
            times_s = time_repeatedly(talker_step(backend, cache, rows, sizes.context), synchronize, sizes.seconds)
            yield _timing("talker", rows, 1, sizes.context, times_s, cost, roofline, lm_dtype)

            cost = predictor_cost(backend, rows=rows)
            times_s = time_repeatedly(predictor_frame(backend, rows), synchronize, sizes.seconds)
            yield _timing("code predictor", rows, 1, 0, times_s, cost, roofline, lm_dtype)

            times_s = time_repeatedly(frame_sampling(backend, rows), synchronize, sizes.seconds)
            yield _timing(SAMPLING, rows, 1, 0, times_s, StepCost(0, 0, 0, 0), roofline, lm_dtype)

            for frames in sizes.windows:
                cost = codec_cost(backend, rows=rows, frames=frames)
                times_s = time_repeatedly(codec_window(backend, rows, frames), synchronize, sizes.seconds)
                yield _timing("codec", rows, frames, 0, times_s, cost, roofline, limits.codec_dtype)


def time_repeatedly(compute: Compute, synchronize: Callable[[], None], seconds: float) -> list[float]:
    """Seconds of each repetition within `seconds`, after one warm-up call."""
    compute()
    synchronize()
    times_s: list[float] = []
    until = time.perf_counter() + seconds
    while len(times_s) < MIN_REPETITIONS or time.perf_counter() < until:
        started = time.perf_counter()
        compute()
        synchronize()
        times_s.append(time.perf_counter() - started)
    return times_s


# --- the steps -------------------------------------------------------------------------------------------------------


def talker_step(backend: Backend, cache: TalkerCache, rows: int, context: int) -> Compute:
    """One decode step: a frame and a text token of each row in, logits of the next first code out."""
    model, talker = backend.model, backend.talker
    device = model.device
    frames = _codes(model, rows)
    text = torch.zeros(rows, getattr(model.config.talker.text, "tables", 1), dtype=torch.int64, device=device)
    starts, slots = torch.full((rows,), context, device=device), KVRows.of(range(rows), device)

    def step() -> object:
        x = next_input(talker, backend.code_predictor, frames, text)
        return talker.first_code_logits(talker.forward(cache, slots, x[:, None], starts, span=context + 1))

    return step


def predictor_frame(backend: Backend, rows: int) -> Compute:
    """All codes of one frame of each row, sampled with the checkpoint's default settings."""
    model = backend.model
    noise = _noise(model, rows)
    hidden = torch.randn(rows, model.config.talker.stack.hidden_size, device=noise.device).to(model.language_dtype)
    settings = SamplingRows.of([default_sampling(model.config)] * rows, noise.device).residual
    inputs = FrameInputs(
        hidden=hidden,
        first_code=_codes(model, rows)[:, 0],
        temperature=settings.temperature,
        top_k=settings.top_k,
        top_p=settings.top_p,
        noise=noise,
    )
    return lambda: backend.predict_frame(inputs)


def frame_sampling(backend: Backend, rows: int) -> Compute:
    """Only the sampling of one frame from random logits, without running a model."""
    config, noise = backend.model.config, _noise(backend.model, rows)
    sampling = SamplingRows.of([default_sampling(config)] * rows, noise.device)
    logits = torch.randn(rows, config.talker.vocab_size, device=noise.device)
    residual = torch.randn(rows, config.code_predictor.codebook_size, device=noise.device)
    seen = torch.zeros(rows, config.talker.vocab_size, dtype=torch.bool, device=noise.device)
    first = FirstCodeInputs(
        hidden=logits[:, :0],
        seen=seen,
        frames=torch.full((rows,), 9, device=noise.device),
        allow_eos=torch.ones_like(seen[:, 0]),
        temperature=sampling.first.temperature,
        top_k=sampling.first.top_k,
        top_p=sampling.first.top_p,
        repetition_penalty=sampling.repetition_penalty,
        uniform=noise[:, 0],
    )

    def all_codes() -> object:
        codes = [backend.sample_first_from_logits(logits, first)]
        codes += [backend.sample(residual, sampling.residual, noise[:, index]) for index in range(1, noise.shape[1])]
        return codes

    return all_codes


def codec_window(backend: Backend, rows: int, frames: int) -> Compute:
    """Decode one window of each row, with its history, to samples on the device."""
    decoder = backend.decoder
    codes = _codes(backend.model, rows)[:, None].expand(-1, frames, -1)
    codes = codes[..., : decoder.config.num_quantizers].contiguous()
    history = decoder.initial_history(rows)
    return lambda: backend.decode_codec(history, codes, None)


# --- inputs and records ----------------------------------------------------------------------------------------------


def _codes(model: LoadedModel, rows: int) -> torch.Tensor:
    """Random codes [B, Q]."""
    config = model.config.code_predictor
    generator = torch.Generator().manual_seed(0)
    codes = torch.randint(config.codebook_size, (rows, config.num_codebooks), generator=generator)
    return codes.to(model.device)


def _noise(model: LoadedModel, rows: int) -> torch.Tensor:
    shape = (rows, model.config.code_predictor.num_codebooks)
    return torch.rand(shape, dtype=torch.float64, device=model.device)


def _cache(model: LoadedModel, rows: int, positions: int) -> TalkerCache:
    stack, device = model.config.talker.stack, model.device
    return TalkerCache.allocate(stack, rows, positions, model.cache_dtype, device)


def _timing(
    part: str,
    rows: int,
    frames: int,
    context: int,
    times_s: list[float],
    cost: StepCost,
    roofline: Roofline,
    dtype: str,
) -> StepTiming:
    ordered = sorted(times_s)
    return StepTiming(
        part=part,
        rows=rows,
        window_frames=frames,
        context_positions=context,
        repetitions=len(times_s),
        median_ms=1000 * statistics.median(times_s),
        p10_ms=1000 * ordered[len(ordered) // 10],
        p90_ms=1000 * ordered[(9 * len(ordered)) // 10],
        weight_bytes=cost.weight_bytes,
        state_bytes=cost.state_bytes,
        flops=cost.flops,
        memory_limit_ms=1000 * cost.bytes / roofline.bytes_per_s(cost.working_set_bytes),
        compute_limit_ms=1000 * cost.flops / roofline.flops_per_s(dtype),
    )


# --- tables and plots ------------------------------------------------------------------------------------------------

_MB, _GIGA = 1e6, 1e9
_STEP_HEADINGS = (
    "part",
    "rows",
    "frames",
    "ms",
    "p10",
    "p90",
    "frames/s",
    "MB",
    "GFLOP",
    "memory limit ms",
    "compute limit ms",
    "of limit",
)
_STEP_NOTE = (
    "One call for all rows. MB and GFLOP: minimum memory traffic and arithmetic of the step. Limits: time at the "
    "measured bandwidth and throughput. Of limit: larger limit divided by the median. Sampling is included in the "
    "steps of talker and predictor."
)
_ENGINE_STEP_NOTE = (
    "One engine step, one frame per row, codec included. GEMM and other kernels are those of the models; copies, "
    "sampling and host (Python, dispatch, scheduling) are outside."
)
_ENGINE_STEP_PARTS = ("GEMM", "other kernels", "copies", "sampling", "host")


def steps_section(records: Sequence[object]) -> Iterator[ReportTable | Plot]:
    """Tables and plots of the records of `legato bench steps`."""
    yield from roofline_tables([record for record in records if isinstance(record, RooflineRecord)])
    yield from step_tables([record for record in records if isinstance(record, StepRecord)])
    engine_steps = [record for record in records if isinstance(record, EngineStepRecord)]
    yield from engine_step_plots(engine_steps)
    yield from engine_step_tables(engine_steps)


def roofline_tables(records: Sequence[RooflineRecord]) -> Iterator[ReportTable]:
    """The measured limits of the machine."""
    for record in records:
        rows = [
            (f"read {each.working_set_mib} MiB repeatedly", f"{each.bytes_per_s / _GIGA:.1f} GB/s")
            for each in record.roofline.reads
        ]
        rows += [(f"GEMM in {each.dtype}", f"{each.flops_per_s / _GIGA:.0f} GFLOP/s") for each in record.roofline.gemm]
        threads = f"{record.machine.threads} {'thread' if record.machine.threads == 1 else 'threads'}"
        title = f"Roofline of this machine, {threads} on {record.machine.device}"
        yield ReportTable(title, ("limit", "measured"), tuple(rows))


def step_tables(records: Sequence[StepRecord]) -> Iterator[ReportTable]:
    """The steps of each model and their limits."""
    for model in dict.fromkeys(record.model for record in records):
        rows = tuple(_step_row(record.step) for record in records if record.model == model)
        yield ReportTable(f"Steps of {_described(model)}", _STEP_HEADINGS, rows, _STEP_NOTE)


def engine_step_tables(records: Sequence[EngineStepRecord]) -> Iterator[ReportTable]:
    """The time of an engine step by kind of work, for each model."""
    headings = ("rows", "step ms", *_ENGINE_STEP_PARTS, "outside kernels")
    for model in dict.fromkeys(record.model for record in records):
        rows = tuple(_engine_step_row(record.engine_step) for record in records if record.model == model)
        yield ReportTable(f"Engine step of {_described(model)}", headings, rows, _ENGINE_STEP_NOTE)


def engine_step_plots(records: Sequence[EngineStepRecord]) -> Iterator[Plot]:
    """The same as stacked bars."""
    if records:
        names = [f"{record.model.name}, {record.engine_step.rows} rows" for record in records]
        columns = zip(*(_engine_step_parts_ms(record.engine_step) for record in records), strict=True)
        parts = list(zip(_ENGINE_STEP_PARTS, columns, strict=True))
        yield Plot("Time of an engine step", stacked_bars(names, parts, title="engine step, ms", unit="ms"))


def _step_row(step: StepTiming) -> tuple[str, ...]:
    times = (step.median_ms, step.p10_ms, step.p90_ms, step.frames_per_s)
    cells = (step.part, str(step.rows), str(step.window_frames), *(f"{each:.1f}" for each in times))
    if not step.weight_bytes:  # sampling has no limits
        return (*cells, *[""] * (len(_STEP_HEADINGS) - len(cells)))
    return (
        *cells,
        f"{(step.weight_bytes + step.state_bytes) / _MB:.0f}",
        f"{step.flops / _GIGA:.2f}",
        f"{step.memory_limit_ms:.1f}",
        f"{step.compute_limit_ms:.1f}",
        f"{step.limit_ms / step.median_ms:.0%}",
    )


def _engine_step_row(step: EngineStepTiming) -> tuple[str, ...]:
    parts = (f"{part_ms:.1f} ({part_ms / step.step_ms:.0%})" for part_ms in _engine_step_parts_ms(step))
    return (str(step.rows), f"{step.step_ms:.1f}", *parts, f"{step.overhead:.0%}")


def _engine_step_parts_ms(step: EngineStepTiming) -> tuple[float, ...]:
    """In the order of `_ENGINE_STEP_PARTS`."""
    return (step.gemm_ms, step.other_kernels_ms, step.copies_ms, step.sampling_ms, step.host_ms)


def _described(model: ModelInfo) -> str:
    """The model's name and dtypes."""
    quantization = "" if model.quantization == "none" else f", {model.quantization}"
    return f"{model.name} ({model.talker_dtype}{quantization}, codec {model.codec_dtype})"
