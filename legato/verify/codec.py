"""Is the codec's streaming exact on these weights? Windows against one whole decode, and controls that must fail.

The oracle is the same decoder, a fresh history, one window, one row. Owns nothing beyond a call; knows no engine.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from legato.models.codec.decoder import CodecDecoder
from legato.models.codec.quantizer import Codebook
from legato.models.codec.state import CodecHistory, CodecRows, CodecStatePool, join_rows
from legato.models.layers.conv import CausalConv1d, CausalConvTranspose1d
from legato.verify.lines import CheckLine

TOLERANCE = {torch.float64: 1e-11, torch.float32: 2e-5}
"""Largest error of full scale. Windows change only the order in which sums are rounded; both keep a wide margin over
that. Half precision has no fixed tolerance (a rounding early in the decoder grows on its way through it): there,
windows may differ from the whole by `HALF_PRECISION_FACTOR` times what the dtype itself costs the whole."""
HALF_PRECISION_FACTOR = 3.0


def run_codec_checks(
    decoder: CodecDecoder, *, frames: int = 310, seed: int = 0, dtypes: Sequence[torch.dtype] = (torch.float32,)
) -> list[CheckLine]:
    """All claims about windows, and the controls, on copies of `decoder` on the CPU.

    `frames` is the length of the whole decode; controls of the attention window need more than the window. Claims run
    in each of `dtypes`; controls run in float64, where the smallest difference shows, on a decode just long enough.
    """
    lines: list[CheckLine] = []
    with torch.inference_mode():
        for dtype in dtypes:
            copied = in_dtype(decoder, dtype)
            codes = random_codes(copied, frames, seed)
            whole, _ = copied(copied.fresh(1), codes)
            tolerance = TOLERANCE[dtype] if dtype in TOLERANCE else half_precision_tolerance(copied, codes, whole)
            lines += partition_lines(copied, codes, whole, tolerance, seed)
            lines.append(interleaved_line(copied, tolerance, seed))
            del copied
        lines += control_lines(in_dtype(decoder, torch.float64), seed)
    return lines


def in_dtype(decoder: CodecDecoder, dtype: torch.dtype) -> CodecDecoder:
    """A copy on the CPU that computes in `dtype`; its codebooks stay in float32 at least, as they are when loaded."""
    copied = copy.deepcopy(decoder).to(device="cpu", dtype=dtype).eval()
    tables = zip(codebooks(copied), codebooks(decoder), strict=True)
    for new, old in tables:
        wide = dtype if dtype == torch.float64 else torch.float32
        new.table = nn.Parameter(old.table.detach().to(device="cpu", dtype=wide))
    return copied


def codebooks(decoder: CodecDecoder) -> list[Codebook]:
    """All codebooks, in order."""
    return [each for each in decoder.modules() if isinstance(each, Codebook)]


def random_codes(decoder: CodecDecoder, frames: int, seed: int, rows: int = 1) -> Tensor:
    """Codes [rows, frames, Q], uniform over the codebooks."""
    shape = (rows, frames, decoder.config.num_quantizers)
    return torch.randint(decoder.config.codebook_size, shape, generator=torch.Generator().manual_seed(seed))


def partitions(frames: int, seed: int) -> dict[str, list[int]]:
    """Window sizes by the name of the partition; each sums to `frames`."""
    drawn = random.Random(seed)
    sizes: list[int] = []
    while sum(sizes) < frames:
        sizes.append(min(drawn.choice((1, 2, 3, 7, 16, 40, 90)), frames - sum(sizes)))
    named = {
        f"windows of {size}": [size] * (frames // size) + [frames % size] * (frames % size > 0) for size in (1, 4, 25)
    }
    return {**named, "random windows": sizes, "two windows": [frames - frames // 3, frames // 3]}


def decode_in(decoder: CodecDecoder, history: CodecHistory, codes: Tensor, sizes: Sequence[int]) -> Tensor:
    """Samples of `codes` [B, T, Q] decoded in windows of `sizes`, joined."""
    parts: list[Tensor] = []
    start = 0
    for size in sizes:
        samples, history = decoder(history, codes[:, start : start + size])
        parts.append(samples)
        start += size
    return torch.cat(parts, dim=1)


def largest_error(samples: Tensor, oracle: Tensor) -> float:
    """Largest absolute difference; infinite where lengths differ or a sample is not finite."""
    if samples.shape != oracle.shape or not bool(samples.isfinite().all()):
        return float("inf")
    return float((samples.double() - oracle.double()).abs().max())


def half_precision_tolerance(decoder: CodecDecoder, codes: Tensor, whole: Tensor) -> float:
    """What computing in the decoder's dtype costs `whole`, against the same weights in float32, times the factor."""
    exact = copy.deepcopy(decoder).float()
    return HALF_PRECISION_FACTOR * largest_error(whole, exact(exact.fresh(1), codes)[0])


def partition_lines(
    decoder: CodecDecoder, codes: Tensor, whole: Tensor, tolerance: float, seed: int
) -> list[CheckLine]:
    """Every partition equals the whole, at exactly `frame_samples` a frame."""
    dtype = decoder.pre_conv.conv.weight.dtype
    frames = codes.shape[1]
    lengths_agree = whole.shape[1] == frames * decoder.frame_samples
    lines = [_line("samples a frame", f"{frames} frames", dtype, 0.0 if lengths_agree else float("inf"), tolerance)]
    for name, sizes in partitions(frames, seed).items():
        error = largest_error(decode_in(decoder, decoder.fresh(1), codes, sizes), whole)
        lines.append(_line("streamed = whole", f"{frames} frames, {name}", dtype, error, tolerance))
    return lines


def interleaved_line(decoder: CodecDecoder, tolerance: float, seed: int) -> CheckLine:
    """Three streams that start, rest and end at different times in a poisoned pool: each as if it were alone."""
    dtype = decoder.pre_conv.conv.weight.dtype
    lengths = (9, 5, 12)
    codes = random_codes(decoder, max(lengths), seed + 1, rows=len(lengths))
    pool = CodecStatePool(decoder.fresh(len(lengths) + 2))
    slots = (3, 0, 4)
    pool.reset(CodecRows.of(slots))
    drawn = random.Random(seed)
    at = [0] * len(lengths)
    parts: list[list[Tensor]] = [[] for _ in lengths]
    while any(done < length for done, length in zip(at, lengths, strict=True)):
        turn = [
            row
            for row in drawn.sample(range(len(lengths)), len(lengths))
            if at[row] < lengths[row] and drawn.random() < 0.7
        ]
        if not turn:
            continue
        takes = [min(drawn.randint(0, 3), lengths[row] - at[row]) for row in turn]
        window = torch.zeros(len(turn), 4, codes.shape[2], dtype=torch.int64)
        for place, (row, take) in enumerate(zip(turn, takes, strict=True)):
            window[place, :take] = codes[row, at[row] : at[row] + take]
        rows = CodecRows.of([slots[row] for row in turn])
        samples, history = decoder(pool.gather(rows), window, torch.tensor(takes))
        pool.scatter(rows, history)
        for place, (row, take) in enumerate(zip(turn, takes, strict=True)):
            parts[row].append(samples[place : place + 1, : take * decoder.frame_samples])
            at[row] += take
    errors = []
    for row, length in enumerate(lengths):
        alone, _ = decoder(decoder.fresh(1), codes[row : row + 1, :length])
        errors.append(largest_error(torch.cat(parts[row], dim=1), alone))
    return _line("streams interleaved = alone", "3 streams, 5 slots", dtype, max(errors), tolerance)


def control_lines(decoder: CodecDecoder, seed: int) -> list[CheckLine]:
    """The check of two joined windows, each time with one fault put in at the seam. `decoder` is float64."""
    window = decoder.config.attention_window
    first, second = window + 3, 4
    codes = random_codes(decoder, first + second, seed + 2, rows=2)
    whole, _ = decoder(decoder.fresh(2), codes)
    before, at_seam = decoder(decoder.fresh(2), codes[:, :first])

    def error(history: CodecHistory) -> float:
        after, _ = decoder(history, codes[:, first:])
        return largest_error(torch.cat((before, after), dim=1)[:1], whole[:1])

    pool = CodecStatePool(decoder.fresh(2))
    unleased = join_rows([pool.snapshot(CodecRows.of([1])), at_seam.select([1])])
    other = decoder.config.codebook_size // 2
    others, _ = decoder(decoder.fresh(2), (codes + other) % decoder.config.codebook_size)
    faults = {
        "convolution history dropped": error(_without(decoder, at_seam, CausalConv1d)),
        "overlap dropped": error(_without(decoder, at_seam, CausalConvTranspose1d)),
        "attention window one short": largest_error(shorter_window(decoder, codes[:1]), whole[:1]),
        "attention history dropped": error(replace(at_seam, positions=torch.zeros_like(at_seam.positions))),
        "position off by one": error(replace(at_seam, positions=at_seam.positions + 1)),
        "history of another row": error(at_seam.select([1, 0])),
        "slot without a lease": error(unleased),
        "other codes": largest_error(others[:1], whole[:1]),
    }
    setting, exact = f"{first} + {second} frames", torch.float64
    sound = _line("seam without a fault", setting, exact, error(at_seam), TOLERANCE[exact])
    caught = [_line(name, setting, exact, value, TOLERANCE[exact], control=True) for name, value in faults.items()]
    return [sound, *caught]


def shorter_window(decoder: CodecDecoder, codes: Tensor) -> Tensor:
    """The whole decode by a decoder of the same weights whose attention sees one frame less."""
    config = replace(decoder.config, attention_window=decoder.config.attention_window - 1)
    with torch.device("meta"):
        short = CodecDecoder(config)
    short.load_state_dict(decoder.state_dict(), assign=True)
    samples: Tensor = short(short.fresh(codes.shape[0]), codes)[0]
    return samples


def _without(
    decoder: CodecDecoder, history: CodecHistory, kind: type[CausalConv1d] | type[CausalConvTranspose1d]
) -> CodecHistory:
    """`history` with what layers of one kind had kept set to zero."""
    layers = [each for each in decoder.modules() if isinstance(each, CausalConv1d | CausalConvTranspose1d)]
    kept = [layer for layer in layers if layer.history_length > 0]
    convs = tuple(
        torch.zeros_like(past) if isinstance(layer, kind) else past
        for layer, past in zip(kept, history.convs, strict=True)
    )
    return replace(history, convs=convs)


def _line(
    claim: str, setting: str, dtype: torch.dtype, error: float, tolerance: float, *, control: bool = False
) -> CheckLine:
    return CheckLine(claim, setting, str(dtype).removeprefix("torch."), error, tolerance, control)
