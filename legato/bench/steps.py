"""One step of each part, over and over: what it takes, beside what the machine's limits would allow.

Owns the caches and inputs of one measurement. Calls the models as the engine's runner and codec stage do, without an
engine, so that batch, window and context are what the row says and nothing else runs.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch

from legato.bench.ceilings import Ceilings
from legato.bench.steps_records import DRAWS, Step
from legato.bench.work import Work, codec_work, predictor_work, talker_work
from legato.config.quantization import INT4, NONE
from legato.engine.resolve import default_sampling
from legato.models.code_predictor.predict import draw_first_code, predict_frame
from legato.models.load import LoadedModel
from legato.models.native.frame import draw_compiled, whole_frames
from legato.models.sampling import SamplingRows, draw
from legato.models.talker.embed import next_input
from legato.models.talker.state import KVRows, TalkerCache

Compute = Callable[[], object]
LEAST = 3
"""Repetitions at least, however long one takes."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """What is measured: rows in one call, frames of a codec window, positions behind each row, seconds for each row."""

    batches: tuple[int, ...] = (1, 2, 4, 8)
    windows: tuple[int, ...] = (1, 4)
    context: int = 128
    seconds: float = 0.5


@dataclass(frozen=True, slots=True)
class Limits:
    """The ceilings, and which number format's products limit the language models and the codec."""

    ceilings: Ceilings
    language: str
    sound: str


def limits_of(model: LoadedModel, ceilings: Ceilings) -> Limits:
    """The formats in which the model's products are made: of rounded weights whole numbers, but of 4 bits by torch."""
    language, sound = (
        str(dtype).removeprefix("torch.") for dtype in (model.talker.codec_head.weight.dtype, model.decoder.dtype)
    )
    if model.quant != NONE:
        language = "bfloat16" if model.quant == INT4 and not model.batch_invariant.talker else "int8"
    return Limits(ceilings, language, sound)


def measure_steps(model: LoadedModel, sizes: Sizes, limits: Limits, settle: Callable[[], None]) -> Iterator[Step]:
    """A step for every part at every size, smallest batches first. `settle` waits for the device."""
    with torch.inference_mode():
        for rows in sizes.batches:
            cache = _cache(model, rows, sizes.context + 1)
            work = talker_work(model, cache, rows=rows, context=sizes.context)
            took = repeated(talker_step(model, cache, rows, sizes.context), settle, sizes.seconds)
            yield _step("talker", rows, 1, sizes.context, took, work, limits.ceilings, limits.language)
            took = repeated(predictor_frame(model, rows), settle, sizes.seconds)
            yield _step(
                "code predictor", rows, 1, 0, took, predictor_work(model, rows=rows), limits.ceilings, limits.language
            )
            took = repeated(draws(model, rows), settle, sizes.seconds)
            yield _step(DRAWS, rows, 1, 0, took, Work(0, 0, 0, 0), limits.ceilings, limits.language)
            for frames in sizes.windows:
                work = codec_work(model, rows=rows, frames=frames)
                took = repeated(codec_window(model, rows, frames), settle, sizes.seconds)
                yield _step("codec", rows, frames, 0, took, work, limits.ceilings, limits.sound)


def repeated(compute: Compute, settle: Callable[[], None], seconds: float) -> list[float]:
    """Seconds of each repetition within `seconds`, after one that does not count."""
    compute()
    settle()
    took: list[float] = []
    until = time.perf_counter() + seconds
    while len(took) < LEAST or time.perf_counter() < until:
        began = time.perf_counter()
        compute()
        settle()
        took.append(time.perf_counter() - began)
    return took


# --- the steps -------------------------------------------------------------------------------------------------------


def talker_step(model: LoadedModel, cache: TalkerCache, rows: int, context: int) -> Compute:
    """A frame and a text token of each row in, the logits of the next first code out."""
    device, talker = model.talker.codec_head.weight.device, model.talker
    frames = _codes(model, rows)
    text = torch.zeros(rows, getattr(model.config.talker.text, "tables", 1), dtype=torch.int64, device=device)
    starts, slots = torch.full((rows,), context, device=device), KVRows.of(range(rows), device)

    def step() -> object:
        x = next_input(talker, model.code_predictor, frames, text)
        return talker.first_code_logits(talker.forward(cache, slots, x[:, None], starts, span=context + 1))

    return step


def predictor_frame(model: LoadedModel, rows: int) -> Compute:
    """All codes of a frame of each row, drawn with the checkpoint's own settings."""
    talker, noise = model.talker, _noise(model, rows)
    hidden = torch.randn(rows, model.config.talker.stack.hidden_size, device=noise.device)
    hidden = hidden.to(talker.codec_head.weight.dtype)
    settings = SamplingRows.of([default_sampling(model.config)] * rows, noise.device).residual
    first = _codes(model, rows)[:, 0]
    embedding = talker.model.codec_embedding
    return lambda: predict_frame(model.code_predictor, embedding, hidden, first, settings=settings, noise=noise)


def draws(model: LoadedModel, rows: int) -> Compute:
    """The draws of one frame alone, on logits that are there: the part of the other figures that is no model."""
    config, noise = model.config, _noise(model, rows)
    sampling = SamplingRows.of([default_sampling(config)] * rows, noise.device)
    logits = torch.randn(rows, config.talker.vocab_size, device=noise.device)
    residual = torch.randn(rows, config.code_predictor.codebook_size, device=noise.device)
    seen = torch.zeros(rows, config.talker.vocab_size, dtype=torch.bool, device=noise.device)
    frames, may_end = torch.full((rows,), 9, device=noise.device), torch.ones_like(seen[:, 0])

    def all_codes() -> object:
        compiled = whole_frames(model.code_predictor, residual)
        rest = draw if compiled is None else partial(draw_compiled, compiled)
        first = draw_first_code(
            *(model.code_predictor, logits, seen),
            frames=frames,
            allow_eos=may_end,
            repetition_penalty=sampling.repetition_penalty,
            eos=config.talker.ids.eos,
            settings=sampling.first,
            uniform=noise[:, 0],
        )
        drawn = [first]
        drawn += [rest(residual, sampling.residual, noise[:, at]) for at in range(1, noise.shape[1])]
        return drawn

    return all_codes


def codec_window(model: LoadedModel, rows: int, frames: int) -> Compute:
    """A window of each row, with its history, to samples on the device."""
    decoder = model.decoder
    codes = _codes(model, rows)[:, None].expand(-1, frames, -1)[..., : decoder.config.num_quantizers].contiguous()
    history = decoder.fresh(rows)
    return lambda: decoder.forward(history, codes)


# --- inputs and records ----------------------------------------------------------------------------------------------


def _codes(model: LoadedModel, rows: int) -> torch.Tensor:
    """Any codes [B, Q]."""
    config = model.config.code_predictor
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randint(config.codebook_size, (rows, config.num_codebooks), generator=generator)
    return drawn.to(model.talker.codec_head.weight.device)


def _noise(model: LoadedModel, rows: int) -> torch.Tensor:
    shape = (rows, model.config.code_predictor.num_codebooks)
    return torch.rand(shape, dtype=torch.float64, device=model.talker.codec_head.weight.device)


def _cache(model: LoadedModel, rows: int, positions: int) -> TalkerCache:
    stack, device = model.config.talker.stack, model.talker.codec_head.weight.device
    return TalkerCache.allocate(stack, rows, positions, model.cache_dtype, device)


def _step(
    part: str, rows: int, frames: int, context: int, took: list[float], work: Work, ceilings: Ceilings, dtype: str
) -> Step:
    ordered = sorted(took)
    return Step(
        part=part,
        rows=rows,
        window_frames=frames,
        context_positions=context,
        repetitions=len(took),
        median_ms=1000 * statistics.median(took),
        p10_ms=1000 * ordered[len(ordered) // 10],
        p90_ms=1000 * ordered[(9 * len(ordered)) // 10],
        weight_bytes=work.weight_bytes,
        state_bytes=work.state_bytes,
        flops=work.flops,
        memory_limit_ms=1000 * work.bytes / ceilings.bytes_s(work.set_bytes),
        arithmetic_limit_ms=1000 * work.flops / ceilings.flops_s(dtype),
    )
