"""Decoding in windows, batches and any order equals one call; negative controls show that the checks can fail."""

from __future__ import annotations

import copy
import random
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from legato.config.model import CodecDecoderConfig
from legato.models.codec.decoder import CodecDecoder
from legato.models.codec.state import CodecHistory, CodecRows, CodecStatePool, join_rows
from legato.models.codec.upsample import ResidualUnit, remove_identity_units
from tests.models.codec.tiny_codec import DECODER, EMBEDDED, tiny_decoder

EXACT, FULL_SCALE_FP32 = 1e-11, 2e-5
LONG = 330
"""Frames; more than the 300 after which the official package splits the signal."""


@pytest.fixture(autouse=True)
def _no_gradients() -> object:
    with torch.inference_mode():
        yield


def codes_of(config: CodecDecoderConfig, frames: int, *, rows: int = 1, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(config.codebook_size, (rows, frames, config.num_quantizers), generator=generator)


def whole(decoder: CodecDecoder, codes: Tensor) -> Tensor:
    samples: Tensor = decoder(decoder.initial_history(codes.shape[0]), codes)[0]
    return samples


def streamed(decoder: CodecDecoder, codes: Tensor, sizes: list[int], start: CodecHistory | None = None) -> Tensor:
    history, parts, index = start or decoder.initial_history(codes.shape[0]), [], 0
    for size in sizes:
        samples, history = decoder(history, codes[:, index : index + size])
        assert samples.shape == (codes.shape[0], size * decoder.frame_samples)
        parts.append(samples)
        index += size
    assert index == codes.shape[1]
    return torch.cat(parts, dim=1)


def error(one: Tensor, other: Tensor) -> float:
    assert one.shape == other.shape
    return float((one - other).abs().max())


def equal_windows(frames: int, size: int) -> list[int]:
    return [size] * (frames // size) + ([frames % size] if frames % size else [])


@pytest.mark.parametrize(
    ("config", "dtype", "tolerance"),
    [
        (DECODER, torch.float64, EXACT),
        (DECODER, torch.float32, FULL_SCALE_FP32),
        (EMBEDDED, torch.float32, FULL_SCALE_FP32),
    ],
    ids=["official graph fp64", "official graph fp32", "embedded graph fp32"],
)
def test_windows_of_one_size(config: CodecDecoderConfig, dtype: torch.dtype, tolerance: float) -> None:
    """Windows of 1, 4, 25 and the official 300 frames, over more than 300 frames (R01)."""
    decoder = tiny_decoder(config, dtype=dtype)
    codes = codes_of(config, LONG)
    oracle = whole(decoder, codes)
    assert oracle.dtype == dtype
    assert oracle.shape == (1, LONG * decoder.frame_samples)
    assert 0.1 < oracle.std() < 0.6
    for size in (1, 4, 25, 300):
        assert error(streamed(decoder, codes, equal_windows(LONG, size)), oracle) <= tolerance


@settings(max_examples=12, deadline=None)
@given(sizes=st.lists(st.integers(1, 40), min_size=1, max_size=12), rows=st.integers(1, 3), seed=st.integers(0, 50))
def test_random_windows(sizes: list[int], rows: int, seed: int) -> None:
    with torch.inference_mode():
        decoder = tiny_decoder()
        codes = codes_of(DECODER, sum(sizes), rows=rows, seed=seed)
        assert error(streamed(decoder, codes, sizes), whole(decoder, codes)) <= EXACT


def test_control_overlap_of_25_frames_is_not_exact() -> None:
    """Decoding with 25 frames of context, as the official package does, differs: attention reaches further (R01)."""
    decoder = tiny_decoder(replace(DECODER, attention_window=30))
    codes = codes_of(DECODER, 90)
    cut = whole(decoder, codes[:, 35:])[:, 25 * decoder.frame_samples :]
    assert error(cut, whole(decoder, codes)[:, 60 * decoder.frame_samples :]) > 1e-4


def test_decoding_continues_after_a_reference() -> None:
    """Windows after the reference of a voice equal the slices of one decode of reference and speech (R02, R11)."""
    decoder = tiny_decoder()
    codes = codes_of(DECODER, 301)
    oracle = whole(decoder, codes)
    _, after_reference = decoder(decoder.initial_history(1), codes[:, :101])
    snapshot = after_reference.clone()
    for _ in range(2):  # the snapshot can be used again
        samples = streamed(decoder, codes[:, 101:], equal_windows(200, 25), snapshot)
        assert samples.shape[1] == 200 * decoder.frame_samples
        for start in range(0, 200, 25):
            part = slice(start * decoder.frame_samples, (start + 25) * decoder.frame_samples)
            assert error(samples[:, part], oracle[:, 101 * decoder.frame_samples :][:, part]) <= EXACT
    forgotten = streamed(decoder, codes[:, 101:], equal_windows(200, 25))
    assert error(forgotten, oracle[:, 101 * decoder.frame_samples :]) > 1e-3


def test_each_frame_yields_all_its_samples() -> None:
    """Windows are not trimmed: 8 windows of 10 frames have the samples of 80 frames (R03)."""
    decoder = tiny_decoder()
    codes = codes_of(DECODER, 80)
    for size in (1, 10, 80):
        assert streamed(decoder, codes, equal_windows(80, size)).shape[1] == 80 * decoder.frame_samples


def test_no_clicks_at_window_boundaries() -> None:
    """Sample differences at window boundaries are not larger than inside windows; control: no history (R04)."""
    decoder = tiny_decoder(EMBEDDED)
    codes = codes_of(EMBEDDED, 1).expand(1, 60, EMBEDDED.num_quantizers)
    samples = streamed(decoder, codes, [1] * 60)[0, 20 * decoder.frame_samples :]

    def jumps(signal: Tensor) -> tuple[float, float]:
        steps = signal.diff().abs()
        at_seam = torch.arange(len(steps)) % decoder.frame_samples == decoder.frame_samples - 1
        return float(steps[at_seam].max()), float(steps[~at_seam].max())

    assert error(streamed(decoder, codes, [1] * 60), whole(decoder, codes)) <= EXACT
    seam, inside = jumps(samples)
    assert seam <= inside
    stateless = torch.cat([whole(decoder, codes[:, :1])[0] for _ in range(40)])
    assert error(stateless[None], samples[None]) > 1e-2


def test_streams_that_start_pause_and_end_at_different_times() -> None:
    """Rows are shuffled, and padded with invalid codes."""
    decoder, rng = tiny_decoder(), random.Random(3)
    lengths, slots = [17, 9, 30, 1], [2, 5, 0, 3]
    codes = codes_of(DECODER, max(lengths), rows=4, seed=9)
    pool = CodecStatePool(decoder.initial_history(6))
    pool.reset(CodecRows.of(slots))
    index = [0] * 4
    parts: list[list[Tensor]] = [[] for _ in lengths]
    while index != lengths:
        step = [stream for stream in rng.sample(range(4), 4) if rng.random() < 0.6]
        if not step:
            continue
        takes = [min(rng.randint(0, 4), lengths[stream] - index[stream]) for stream in step]
        window = torch.randint(-1000, 99999, (len(step), 5, DECODER.num_quantizers))
        for row, (stream, take) in enumerate(zip(step, takes, strict=True)):
            window[row, :take] = codes[stream, index[stream] : index[stream] + take]
        rows = CodecRows.of([slots[stream] for stream in step])
        samples, history = decoder(pool.gather(rows), window, torch.tensor(takes))
        pool.scatter(rows, history)
        for row, (stream, take) in enumerate(zip(step, takes, strict=True)):
            valid = take * decoder.frame_samples
            assert not samples[row, valid:].any()
            parts[stream].append(samples[row, :valid])
            index[stream] += take
    assert pool.gather(CodecRows.of(slots)).positions.tolist() == lengths
    for stream, length in enumerate(lengths):
        alone = whole(decoder, codes[stream : stream + 1, :length])[0]
        assert error(torch.cat(parts[stream]), alone) <= EXACT


def test_order_of_rows_does_not_matter() -> None:
    decoder = tiny_decoder()
    codes = codes_of(DECODER, 12, rows=3)
    order = [2, 0, 1]
    assert error(whole(decoder, codes[order]), whole(decoder, codes)[order]) <= EXACT


def test_nan_stays_in_its_row() -> None:
    """A NaN row does not affect the others, and reading a slot that was not reset gives NaN."""
    decoder = tiny_decoder()
    codes = codes_of(DECODER, 8, rows=2)
    poisoned = CodecStatePool(decoder.initial_history(1)).gather(CodecRows.of([0]))
    samples, _ = decoder(join_rows([poisoned, decoder.initial_history(1)]), codes)
    assert samples[0].isnan().any()
    assert error(samples[1:], whole(decoder, codes[1:])) <= EXACT


def test_row_without_valid_frames_keeps_its_history() -> None:
    decoder = tiny_decoder()
    _, history = decoder(decoder.initial_history(2), codes_of(DECODER, 7, rows=2))
    samples, after = decoder(history, codes_of(DECODER, 3, rows=2), torch.tensor([0, 0]))
    assert not samples.any()
    assert all(torch.equal(one, other) for one, other in zip(history.tensors(), after.tensors(), strict=True))


def test_forward_does_not_modify_its_history() -> None:
    decoder = tiny_decoder()
    _, history = decoder(decoder.initial_history(1), codes_of(DECODER, 7))
    before = history.clone()
    decoder(history, codes_of(DECODER, 3))
    assert all(torch.equal(one, other) for one, other in zip(history.tensors(), before.tensors(), strict=True))


def test_half_precision_runs_and_returns_float32() -> None:
    decoder = tiny_decoder(dtype=torch.bfloat16)
    samples, history = decoder(decoder.initial_history(1), codes_of(DECODER, 5))
    assert samples.dtype == torch.float32
    assert {tensor.dtype for tensor in history.tensors()[1:]} == {torch.bfloat16}
    assert error(samples, whole(tiny_decoder(dtype=torch.float32), codes_of(DECODER, 5))) < 0.2


def unit_of(decoder: CodecDecoder, stage: int, place: int) -> nn.Module:
    """The module `decoder.<stage>.block.<place>`: a residual unit or its replacement."""
    return decoder.get_submodule(f"decoder.{stage}.block.{place}")


def with_identity_units(decoder: CodecDecoder, *which: tuple[int, int]) -> CodecDecoder:
    """A copy whose residual units at `which` (stage, place) return their input."""
    copied = copy.deepcopy(decoder)
    for stage, place in which:
        unit = unit_of(copied, stage, place)
        assert isinstance(unit, ResidualUnit)
        for parameter in unit.conv2.parameters():
            parameter.zero_()
    return copied


def test_identity_units_are_removed() -> None:
    decoder = with_identity_units(tiny_decoder(), (2, 2), (2, 4))
    codes = codes_of(DECODER, 20)
    oracle, histories = whole(decoder, codes), len(decoder.initial_history(1).convs)
    remove_identity_units(decoder.decoder)
    removed = {(2, 2), (2, 4)}
    for place in ((stage, unit) for stage in (1, 2) for unit in (2, 3, 4)):
        assert isinstance(unit_of(decoder, *place), nn.Identity if place in removed else ResidualUnit)
    assert len(decoder.initial_history(1).convs) == histories - len(removed)
    assert torch.equal(whole(decoder, codes), oracle)
    assert error(streamed(decoder, codes, [1] * 20), oracle) <= EXACT


def test_unit_with_one_nonzero_bias_is_kept() -> None:
    decoder = with_identity_units(tiny_decoder(), (2, 2))
    decoder.get_parameter("decoder.2.block.2.conv2.conv.bias")[3] = 1e-3
    remove_identity_units(decoder.decoder)
    assert isinstance(unit_of(decoder, 2, 2), ResidualUnit)
