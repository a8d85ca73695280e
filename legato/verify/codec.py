"""The whole codec decoder: windows against one call, streams side by side, and faults at a seam that must be noticed.

The oracle is the same decoder, a fresh history, one window, one row. Claims run on the loaded weights where they are;
controls on a float64 copy, where the smallest difference shows. Owns nothing beyond a call; knows no engine.
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
from legato.verify.compare import Comparison, compare, compare_counts, worst
from legato.verify.lines import CheckLine, Kind, Where
from legato.verify.partitions import SMALL, partitions
from legato.verify.subject import Subject, dtype_name
from legato.verify.tolerance import COUNTS, SHARE, Tolerance, of_full_scale, of_half_precision

GROUP = "codec decoder"
ONE_STREAM = "one stream"
POOLED = "slots of a poisoned pool"


def check_codec(subject: Subject) -> Iterator[CheckLine]:
    """All claims about whole decodes, then the controls."""
    decoder, frames = subject.model.decoder, subject.depth.decode_frames
    codes = subject.codes(frames, salt=2)
    whole, _ = decoder.forward(decoder.fresh(1), codes)
    tolerance = codec_tolerance(decoder, codes, whole)
    where = subject.at_codec(ONE_STREAM)
    samples = compare_counts(whole.shape[1], frames * decoder.frame_samples, stage="samples")
    yield CheckLine(
        GROUP, f"{decoder.frame_samples} samples for each frame", f"{frames} frames", where, samples, COUNTS
    )
    for name in subject.depth.partitions:
        some = subject.depth.small_window_frames if name in SMALL else frames
        got = decode_in(decoder, decoder.fresh(1), codes[:, :some], partitions(some, subject.seed)[name])
        comparison = compare_samples(
            got, whole[:, : some * decoder.frame_samples], decoder.frame_samples, tolerance.limit
        )
        yield CheckLine(
            GROUP, "decode in windows = in one call", f"{some} frames, {name}", where, comparison, tolerance
        )
    yield interleaved(subject, tolerance)
    yield from controls(subject)


def codec_tolerance(decoder: CodecDecoder, codes: Tensor, whole: Tensor) -> Tolerance:
    """Full scale is 1. In half precision: by what computing in it costs `whole`, against the weights in float32."""
    dtype = decoder.dtype
    if dtype in SHARE:
        return of_full_scale(dtype)
    exact = wide_copy(decoder, torch.float32)
    oracle, _ = exact.forward(exact.fresh(1), codes)
    return of_half_precision(float((whole - oracle).abs().max()), dtype)


def compare_samples(got: Tensor, oracle: Tensor, frame_samples: int, limit: float) -> Comparison:
    """Samples [B, N]."""
    return compare(got, oracle, ("row", "sample"), stage="samples", limit=limit, frame_samples=frame_samples)


def decode_in(decoder: CodecDecoder, history: CodecHistory, codes: Tensor, sizes: Sequence[int]) -> Tensor:
    """Samples of `codes` [B, T, Q] decoded in windows of `sizes`, joined."""
    parts: list[Tensor] = []
    start = 0
    for size in sizes:
        samples, history = decoder.forward(history, codes[:, start : start + size])
        parts.append(samples)
        start += size
    return torch.cat(parts, dim=1)


def interleaved(subject: Subject, tolerance: Tolerance) -> CheckLine:
    """Three streams that start, rest and end at different times in a poisoned pool: each as if it were alone."""
    decoder, lengths = subject.model.decoder, (9, 5, 12)
    codes = subject.codes(max(lengths), salt=3, rows=len(lengths))
    joined = decode_interleaved(decoder, codes, lengths, subject.seed)
    found = []
    for row, length in enumerate(lengths):
        alone, _ = decoder.forward(decoder.fresh(1), codes[row : row + 1, :length])
        found.append(compare_samples(joined[row], alone, decoder.frame_samples, tolerance.limit))
    where = subject.at_codec(POOLED, batch=len(lengths))
    return CheckLine(GROUP, "streams interleaved = each alone", "3 streams in 5 slots", where, worst(found), tolerance)


def decode_interleaved(decoder: CodecDecoder, codes: Tensor, lengths: Sequence[int], seed: int) -> list[Tensor]:
    """Samples [1, N] of each row, decoded in random turns of 0 to 3 frames by random companies of rows."""
    pool = CodecStatePool(decoder.fresh(len(lengths) + 2))
    slots = [3, 0, 4]
    pool.reset(CodecRows.of(slots, codes.device))
    drawn = random.Random(seed)
    at = [0] * len(lengths)
    parts: list[list[Tensor]] = [[] for _ in lengths]
    while any(done < length for done, length in zip(at, lengths, strict=True)):
        order = drawn.sample(range(len(lengths)), len(lengths))
        turn = [row for row in order if at[row] < lengths[row] and drawn.random() < 0.7]
        if not turn:
            continue
        takes = [min(drawn.randint(0, 3), lengths[row] - at[row]) for row in turn]
        window = codes.new_zeros(len(turn), 4, codes.shape[2])
        for place, (row, take) in enumerate(zip(turn, takes, strict=True)):
            window[place, :take] = codes[row, at[row] : at[row] + take]
        rows = CodecRows.of([slots[row] for row in turn], codes.device)
        samples, history = decoder.forward(pool.gather(rows), window, torch.tensor(takes, device=codes.device))
        pool.scatter(rows, history)
        for place, (row, take) in enumerate(zip(turn, takes, strict=True)):
            parts[row].append(samples[place : place + 1, : take * decoder.frame_samples])
            at[row] += take
    return [torch.cat(each, dim=1) for each in parts]


# --- controls --------------------------------------------------------------------------------------------------------


def controls(subject: Subject) -> Iterator[CheckLine]:
    """Two joined windows without a fault, which must equal the whole, and with one fault each, which must not."""
    decoder = wide_copy(subject.model.decoder, torch.float64)
    tolerance = of_full_scale(torch.float64)
    first, second = decoder.config.attention_window + 3, 4
    codes = subject.codes(first + second, salt=4, rows=2)
    whole, _ = decoder.forward(decoder.fresh(1), codes[:1])
    before, at_seam = decoder.forward(decoder.fresh(2), codes[:, :first])
    setting, where = f"{first} + {second} frames", Where(str(subject.device), dtype_name(torch.float64), 2, ONE_STREAM)

    def line(name: str, samples: Tensor, kind: Kind) -> CheckLine:
        comparison = compare_samples(samples[:1], whole, decoder.frame_samples, tolerance.limit)
        return CheckLine(GROUP, name, setting, where, comparison, tolerance, kind)

    def joined(history: CodecHistory, shift: int = 0) -> Tensor:
        after = (codes[:, first:] + shift) % decoder.config.codebook_size
        return torch.cat((before, decoder.forward(history, after)[0]), dim=1)

    yield line("seam without a fault", joined(at_seam), Kind.CLAIM)
    for name, history in faults(decoder, at_seam).items():
        yield line(name, joined(history), Kind.CONTROL)
    yield line("other codes", joined(at_seam, shift=decoder.config.codebook_size // 2), Kind.CONTROL)
    yield line("attention window one frame short", shorter_window(decoder, codes[:1]), Kind.CONTROL)


def faults(decoder: CodecDecoder, at_seam: CodecHistory) -> dict[str, CodecHistory]:
    """What could go wrong with a history between two windows, each put in."""
    pool = CodecStatePool(decoder.fresh(2))
    poisoned = pool.snapshot(CodecRows.of([1], at_seam.positions.device))
    return {
        "convolution history dropped": without(decoder, at_seam, overlaps=False),
        "overlap dropped": without(decoder, at_seam, overlaps=True),
        "attention history dropped": replace(at_seam, positions=torch.zeros_like(at_seam.positions)),
        "position off by one": replace(at_seam, positions=at_seam.positions + 1),
        "history of another row": at_seam.select([1, 0]),
        "slot without a lease": join_rows([poisoned, at_seam.select([1])]),
    }


def without(decoder: CodecDecoder, history: CodecHistory, *, overlaps: bool) -> CodecHistory:
    """`history` with what the transposed convolutions had kept set to zero, or else what all the others had."""
    layers = [each for each in decoder.modules() if isinstance(each, CausalLayer) and each.history_length > 0]
    convs = tuple(
        torch.zeros_like(past) if isinstance(layer, CausalConvTranspose1d) == overlaps else past
        for layer, past in zip(layers, history.convs, strict=True)
    )
    return replace(history, convs=convs)


def shorter_window(decoder: CodecDecoder, codes: Tensor) -> Tensor:
    """The whole decode by a decoder of the same weights whose attention sees one frame less."""
    config = replace(decoder.config, attention_window=decoder.config.attention_window - 1)
    with torch.device("meta"):
        short = CodecDecoder(config)
    for name, part in decoder.named_children():
        if part is not decoder.pre_transformer:
            short.register_module(name, part)
    short.pre_transformer.load_state_dict(decoder.pre_transformer.state_dict(), assign=True)
    return short.forward(short.fresh(codes.shape[0]), codes)[0]


def wide_copy(decoder: CodecDecoder, dtype: torch.dtype) -> CodecDecoder:
    """A copy that computes in `dtype`; its codebooks keep their own values, as they are when loaded."""
    copied = copy.deepcopy(decoder).to(dtype=dtype)
    for new, old in zip(codebooks(copied), codebooks(decoder), strict=True):
        wide = torch.float64 if dtype == torch.float64 else torch.float32
        new.table = nn.Parameter(old.table.detach().to(wide), requires_grad=False)
    return copied


def codebooks(decoder: CodecDecoder) -> list[Codebook]:
    """All codebooks, in order."""
    return [each for each in decoder.modules() if isinstance(each, Codebook)]
