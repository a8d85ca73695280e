"""The codec checks pass on a correct decoder and fail on faulty ones, per layer and as a whole."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from legato.models.codec.decoder import CodecDecoder
from legato.models.codec.state import CodecHistory
from legato.models.codec.upsample import DecoderBlock, ResidualUnit, remove_identity_units
from legato.verify import codec, codec_layers
from legato.verify.results import CheckLine, Kind, Verdict, tally
from legato.verify.target import ALL, partitions
from tests.engine.tiny import tiny_decoder
from tests.verify.toy import DEPTH, toy_model, toy_target

CONTROLS = {
    "convolution history dropped",
    "overlap dropped",
    "attention window one frame short",
    "attention history dropped",
    "position off by one",
    "history of another row",
    "unallocated slot",
    "other codes",
}


class DropsHistory(CodecDecoder):
    """Drops its history at every window."""

    def forward(
        self, history: CodecHistory, codes: Tensor, frames: Tensor | None = None
    ) -> tuple[Tensor, CodecHistory]:
        samples, _ = super().forward(self.initial_history(history.rows), codes, frames)
        return samples, history


class LosesSamples(CodecDecoder):
    """Loses a constant number of samples in every window."""

    def forward(
        self, history: CodecHistory, codes: Tensor, frames: Tensor | None = None
    ) -> tuple[Tensor, CodecHistory]:
        samples, after = super().forward(history, codes, frames)
        return samples[:, :-5], after


def decoder_of(kind: type[CodecDecoder], dtype: torch.dtype = torch.float32) -> CodecDecoder:
    reference = tiny_decoder()
    decoder = kind(reference.config).to(dtype)
    decoder.load_state_dict(reference.state_dict())
    return decoder.eval()


def run(decoder: CodecDecoder | None = None) -> list[CheckLine]:
    with torch.inference_mode():
        return list(codec.check_codec(toy_target(toy_model(decoder))))


def claims(lines: list[CheckLine]) -> list[CheckLine]:
    return [line for line in lines if line.kind is Kind.CLAIM]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_correct_decoder_passes_and_every_control_is_caught(dtype: torch.dtype) -> None:
    lines = run(decoder_of(CodecDecoder, dtype))
    assert [line for line in lines if line.bad] == []
    assert {line.claim for line in lines if line.kind is Kind.CONTROL} == CONTROLS
    assert {line.execution.dtype for line in claims(lines)} == {str(dtype).removeprefix("torch."), "float64"}


@pytest.mark.parametrize("kind", [DropsHistory, LosesSamples])
def test_faulty_decoder_fails(kind: type[CodecDecoder]) -> None:
    failed = {line.claim for line in claims(run(decoder_of(kind))) if line.bad}
    assert "decode in windows = in one call" in failed
    assert "interleaved streams = solo" in failed


def test_decoder_with_constant_output_fails() -> None:
    """All outputs are equal, so the injected faults are not detected and the run fails."""
    decoder = decoder_of(CodecDecoder)
    decoder.get_parameter(f"decoder.{len(decoder.decoder) - 1}.conv.weight").data.zero_()
    lines = run(decoder)
    missed = {line.claim for line in lines if line.verdict is Verdict.NOT_DETECTED}
    assert missed >= CONTROLS - {"unallocated slot"}
    assert not tally(lines).passed


def layers_of(depth_frames: int = DEPTH.layer_frames) -> list[CheckLine]:
    target = toy_target(depth=replace(DEPTH, layer_frames=depth_frames))
    with torch.inference_mode():
        return list(codec_layers.check_codec_layers(target))


def test_every_layer_is_checked_and_every_history_has_a_control() -> None:
    lines = layers_of()
    assert [line for line in lines if line.bad] == []
    checked = [line.setting.split(",")[0] for line in claims(lines)]
    layers = codec_layers.codec_layers(tiny_decoder())
    assert checked == [layer.name for layer in layers]
    controlled = {line.setting.split(",")[0] for line in lines if line.kind is Kind.CONTROL}
    assert controlled == {layer.name for layer in layers if layer.stateful}


def test_skipped_residual_unit_has_no_history() -> None:
    decoder = tiny_decoder()
    block = decoder.decoder[1]
    assert isinstance(block, DecoderBlock)
    unit = block.block[3]
    assert isinstance(unit, ResidualUnit)
    for parameter in unit.conv2.parameters():
        parameter.data.zero_()
    remove_identity_units(decoder.decoder)
    layer = next(each for each in codec_layers.codec_layers(decoder) if each.name == "decoder.1.block.3")
    assert not layer.stateful
    x = torch.randn(1, 6, 4)
    assert torch.equal(codec_layers.in_windows(layer, x, [1, 2, 3]), x)
    codes = toy_target().random_codes(40, salt=1)
    with torch.inference_mode():  # the controls of the whole decoder must accept a skipped unit, too
        whole, short = decoder(decoder.initial_history(1), codes)[0], codec.shorter_window(decoder, codes)
    assert short.shape == whole.shape
    assert not torch.equal(short, whole)


def test_layers_in_order_compose_the_decoder() -> None:
    """Composed, the layers give the decoder's samples (before its clamp), so none is missing."""
    decoder = tiny_decoder()
    codes = toy_target().random_codes(5, salt=1)
    x = codes
    with torch.inference_mode():
        for layer in codec_layers.codec_layers(decoder):
            x, _ = layer.step(x, codec_layers.initial_state(layer, x, torch.float32))
        samples, _ = decoder.forward(decoder.initial_history(1), codes)
    assert torch.allclose(x[..., 0].clamp(-1, 1), samples, atol=1e-6)


@pytest.mark.parametrize(
    ("fault", "layer"),
    [
        ("legato.models.layers.conv.next_history", "pre_conv"),
        ("legato.models.layers.attention.next_history", "layers.0"),
    ],
)
def test_layer_that_drops_its_history_is_named(monkeypatch: pytest.MonkeyPatch, fault: str, layer: str) -> None:
    def dropped(joined: Tensor, keep: int, _lengths: Tensor | None, dim: int) -> Tensor:
        return torch.zeros_like(joined.narrow(dim, 0, keep))

    monkeypatch.setattr(fault, dropped)
    failed = [line.setting for line in layers_of() if line.bad and line.kind is Kind.CLAIM]
    assert any(layer in setting for setting in failed)


def test_partitions_cover_all_frames() -> None:
    cuts = partitions(310, 3)
    assert set(cuts) == set(ALL)
    assert all(sum(sizes) == 310 and min(sizes) > 0 for sizes in cuts.values())
    assert cuts["random windows"] != partitions(310, 4)["random windows"]


def test_convolution_example_equals_the_document() -> None:
    lines = list(codec_layers.check_convolution(torch.device("cpu")))
    assert tally(lines).passed
    assert all(line.comparison.max_abs == 0.0 for line in claims(lines))
    assert codec_layers.example_by_hand() == [0, 3, 8, 14, 20, 26, 32, 38, 44, 50, 56, 62]


def test_convolution_that_drops_its_history_fails_the_example(monkeypatch: pytest.MonkeyPatch) -> None:
    def dropped(joined: Tensor, keep: int, _lengths: Tensor | None, dim: int) -> Tensor:
        return torch.zeros_like(joined.narrow(dim, 0, keep))

    monkeypatch.setattr("legato.models.layers.conv.next_history", dropped)
    failed = [line for line in codec_layers.check_convolution(torch.device("cpu")) if line.bad]
    first = next(line for line in failed if line.setting == "windows of 3, 4, 5").comparison.first
    assert first is not None
    assert (first.place, first.got, first.expected) == ((("position", 3),), 9.0, 14.0)
