"""The codec decoder: decoding in windows against one call, interleaved streams, and faults between two windows.

The oracle is the same decoder with a fresh history, one window and one row. Claims run on the loaded weights; controls
run on a float64 copy, in which the smallest difference is visible.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from legato.models.codec.decoder import CodecDecoder
from legato.models.codec.quantizer import Codebook
from legato.models.codec.state import CodecHistory, CodecRows, CodecStatePool, join_rows
from legato.models.layers.conv import CausalConvTranspose1d, CausalLayer
from legato.verify.compare import (
    COUNTS,
    RELATIVE_LIMIT,
    Comparison,
    Tolerance,
    compare,
    compare_counts,
    of_full_scale,
    of_half_precision,
    worst,
)
from legato.verify.results import CheckLine, ExecutionInfo, Kind
from legato.verify.target import SMALL, Target, dtype_name, partitions

GROUP = "codec decoder"
ONE_STREAM = "one stream"
POOLED = "slots of a poisoned pool"


def check_codec(target: Target) -> Iterator[CheckLine]:
    """All claims about whole decodes, then the controls."""
    decoder, frames = target.backend.decoder, target.depth.decode_frames
    frame_samples = decoder.frame_samples
    codes = target.random_codes(frames, salt=2)
    whole, _ = decoder.forward(decoder.initial_history(1), codes)
    tolerance = codec_tolerance(target.model.decoder, codes, whole)
    execution = target.codec_execution(ONE_STREAM)
    yield CheckLine(
        group=GROUP,
        claim=f"{frame_samples} samples per frame",
        setting=f"{frames} frames",
        execution=execution,
        comparison=compare_counts(whole.shape[1], frames * frame_samples, stage="samples"),
        tolerance=COUNTS,
    )
    for name in target.depth.partitions:
        length = target.depth.small_window_frames if name in SMALL else frames
        windows = partitions(length, target.seed)[name]
        samples = decode_in_windows(decoder, decoder.initial_history(1), codes[:, :length], windows)
        yield CheckLine(
            group=GROUP,
            claim="decode in windows = in one call",
            setting=f"{length} frames, {name}",
            execution=execution,
            comparison=compare_samples(samples, whole[:, : length * frame_samples], frame_samples, tolerance.limit),
            tolerance=tolerance,
        )
    yield check_interleaved(target, tolerance)
    yield from check_faults(target)


def codec_tolerance(decoder: CodecDecoder, codes: Tensor, whole: Tensor) -> Tolerance:
    """A fraction of full scale (1). In half precision: relative to the error of `whole` against float32."""
    dtype = decoder.dtype
    if dtype in RELATIVE_LIMIT:
        return of_full_scale(dtype)
    reference = wide_copy(decoder, torch.float32)
    oracle, _ = reference.forward(reference.initial_history(1), codes)
    return of_half_precision(float((whole - oracle).abs().max()), dtype)


def compare_samples(got: Tensor, oracle: Tensor, frame_samples: int, limit: float) -> Comparison:
    """Compare samples [B, N]."""
    return compare(got, oracle, ("row", "sample"), stage="samples", limit=limit, frame_samples=frame_samples)


def decode_in_windows(decoder: CodecDecoder, history: CodecHistory, codes: Tensor, sizes: Sequence[int]) -> Tensor:
    """Concatenated samples of `codes` [B, T, Q], decoded in windows of `sizes` frames."""
    parts: list[Tensor] = []
    start = 0
    for size in sizes:
        samples, history = decoder.forward(history, codes[:, start : start + size])
        parts.append(samples)
        start += size
    return torch.cat(parts, dim=1)


def check_interleaved(target: Target, tolerance: Tolerance) -> CheckLine:
    """Three streams that start, pause and end at different times in a poisoned pool, each against a solo decode."""
    decoder, lengths = target.backend.decoder, (9, 5, 12)
    codes = target.random_codes(max(lengths), salt=3, rows=len(lengths))
    interleaved = decode_interleaved(decoder, codes, lengths, target.seed)
    parts = []
    for row, length in enumerate(lengths):
        solo, _ = decoder.forward(decoder.initial_history(1), codes[row : row + 1, :length])
        parts.append(compare_samples(interleaved[row], solo, decoder.frame_samples, tolerance.limit))
    return CheckLine(
        group=GROUP,
        claim="interleaved streams = solo",
        setting="3 streams in 5 slots",
        execution=target.codec_execution(POOLED, batch=len(lengths)),
        comparison=worst(parts),
        tolerance=tolerance,
    )


def decode_interleaved(decoder: CodecDecoder, codes: Tensor, lengths: Sequence[int], seed: int) -> list[Tensor]:
    """Samples [1, N] of each row, decoded 0 to 3 frames at a time in batches of randomly chosen rows."""
    pool = CodecStatePool(decoder.initial_history(len(lengths) + 2))
    slots = [3, 0, 4]
    pool.reset(CodecRows.of(slots, codes.device))
    generator = random.Random(seed)
    positions = [0] * len(lengths)
    parts: list[list[Tensor]] = [[] for _ in lengths]
    while any(position < length for position, length in zip(positions, lengths, strict=True)):
        order = generator.sample(range(len(lengths)), len(lengths))
        batch = [row for row in order if positions[row] < lengths[row] and generator.random() < 0.7]
        if not batch:
            continue
        counts = [min(generator.randint(0, 3), lengths[row] - positions[row]) for row in batch]
        # The window is wider than any count: padding frames must not change samples or histories.
        window = codes.new_zeros(len(batch), 4, codes.shape[2])
        for index, (row, count) in enumerate(zip(batch, counts, strict=True)):
            window[index, :count] = codes[row, positions[row] : positions[row] + count]
        rows = CodecRows.of([slots[row] for row in batch], codes.device)
        samples, history = decoder.forward(pool.gather(rows), window, torch.tensor(counts, device=codes.device))
        pool.scatter(rows, history)
        for index, (row, count) in enumerate(zip(batch, counts, strict=True)):
            parts[row].append(samples[index : index + 1, : count * decoder.frame_samples])
            positions[row] += count
    return [torch.cat(each, dim=1) for each in parts]


# --- controls --------------------------------------------------------------------------------------------------------


def check_faults(target: Target) -> Iterator[CheckLine]:
    """Two windows without a fault, which must equal the whole, and with one fault each, which must not."""
    decoder = wide_copy(target.model.decoder, torch.float64)
    tolerance = of_full_scale(torch.float64)
    first, second = decoder.config.attention_window + 3, 4
    codes = target.random_codes(first + second, salt=4, rows=2)
    whole, _ = decoder.forward(decoder.initial_history(1), codes[:1])
    before, history = decoder.forward(decoder.initial_history(2), codes[:, :first])

    def line(name: str, samples: Tensor, kind: Kind) -> CheckLine:
        return CheckLine(
            group=GROUP,
            claim=name,
            setting=f"{first} + {second} frames",
            execution=ExecutionInfo(str(target.device), dtype_name(torch.float64), 2, ONE_STREAM),
            comparison=compare_samples(samples[:1], whole, decoder.frame_samples, tolerance.limit),
            tolerance=tolerance,
            kind=kind,
        )

    def continue_from(history: CodecHistory, shift: int = 0) -> Tensor:
        after = (codes[:, first:] + shift) % decoder.config.codebook_size
        return torch.cat((before, decoder.forward(history, after)[0]), dim=1)

    yield line("two windows without a fault", continue_from(history), Kind.CLAIM)
    for name, faulty in faults(decoder, history).items():
        yield line(name, continue_from(faulty), Kind.CONTROL)
    yield line("other codes", continue_from(history, shift=decoder.config.codebook_size // 2), Kind.CONTROL)
    yield line("attention window one frame short", shorter_window(decoder, codes[:1]), Kind.CONTROL)


def faults(decoder: CodecDecoder, history: CodecHistory) -> dict[str, CodecHistory]:
    """Faulty histories between two windows, by name."""
    pool = CodecStatePool(decoder.initial_history(2))
    poisoned = pool.snapshot(CodecRows.of([1], history.positions.device))
    return {
        "convolution history dropped": drop_convolution_history(decoder, history, overlaps=False),
        "overlap dropped": drop_convolution_history(decoder, history, overlaps=True),
        "attention history dropped": replace(history, positions=torch.zeros_like(history.positions)),
        "position off by one": replace(history, positions=history.positions + 1),
        "history of another row": history.select([1, 0]),
        "unallocated slot": join_rows([poisoned, history.select([1])]),
    }


def drop_convolution_history(decoder: CodecDecoder, history: CodecHistory, *, overlaps: bool) -> CodecHistory:
    """`history` with zeros for the transposed convolutions if `overlaps`, else for all other convolutions."""
    layers = [each for each in decoder.modules() if isinstance(each, CausalLayer) and each.history_length > 0]
    convs = tuple(
        torch.zeros_like(past) if isinstance(layer, CausalConvTranspose1d) == overlaps else past
        for layer, past in zip(layers, history.convs, strict=True)
    )
    return replace(history, convs=convs)


def shorter_window(decoder: CodecDecoder, codes: Tensor) -> Tensor:
    """Samples of `codes` from a decoder with the same weights and an attention window one frame shorter."""
    config = replace(decoder.config, attention_window=decoder.config.attention_window - 1)
    with torch.device("meta"):
        short = CodecDecoder(config)
    for name, part in decoder.named_children():
        if part is not decoder.pre_transformer:
            short.register_module(name, part)
    short.pre_transformer.load_state_dict(decoder.pre_transformer.state_dict(), assign=True)
    return short.forward(short.initial_history(codes.shape[0]), codes)[0]


def wide_copy(decoder: CodecDecoder, dtype: torch.dtype) -> CodecDecoder:
    """A copy that computes in `dtype`. Codebooks keep their loaded values, without conversion to a narrower dtype."""
    copied = copy.deepcopy(decoder).to(dtype=dtype)
    for new, old in zip(codebooks(copied), codebooks(decoder), strict=True):
        wide = torch.float64 if dtype == torch.float64 else torch.float32
        new.table = nn.Parameter(old.table.detach().to(wide), requires_grad=False)
    return copied


def codebooks(decoder: CodecDecoder) -> list[Codebook]:
    """All codebooks, in order."""
    return [each for each in decoder.modules() if isinstance(each, Codebook)]
