"""The codec's checks pass on a sound decoder, and fail on decoders with a fault, layer by layer and as a whole."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from legato.models.codec.decoder import CodecDecoder
from legato.models.codec.state import CodecHistory
from legato.models.codec.upsample import DecoderBlock, ResidualUnit, pass_idle_units
from legato.verify import codec, codec_layers, convolution
from legato.verify.lines import CheckLine, Kind, Verdict, tally
from legato.verify.partitions import ALL, partitions
from tests.engine.tiny import tiny_decoder
from tests.verify.toy import DEPTH, toy_model, toy_subject

CONTROLS = {
    "convolution history dropped",
    "overlap dropped",
    "attention window one frame short",
    "attention history dropped",
    "position off by one",
    "history of another row",
    "slot without a lease",
    "other codes",
}


class Forgetful(CodecDecoder):
    """Starts every window afresh: the fault that the checks are for."""

    def forward(
        self, history: CodecHistory, codes: Tensor, frames: Tensor | None = None
    ) -> tuple[Tensor, CodecHistory]:
        samples, _ = super().forward(self.fresh(history.rows), codes, frames)
        return samples, history


class Short(CodecDecoder):
    """Loses a constant number of samples in every window."""

    def forward(
        self, history: CodecHistory, codes: Tensor, frames: Tensor | None = None
    ) -> tuple[Tensor, CodecHistory]:
        samples, after = super().forward(history, codes, frames)
        return samples[:, :-5], after


def made_of(kind: type[CodecDecoder], dtype: torch.dtype = torch.float32) -> CodecDecoder:
    sound = tiny_decoder()
    decoder = kind(sound.config).to(dtype)
    decoder.load_state_dict(sound.state_dict())
    return decoder.eval()


def run(decoder: CodecDecoder | None = None) -> list[CheckLine]:
    with torch.inference_mode():
        return list(codec.check_codec(toy_subject(toy_model(decoder))))


def claims(lines: list[CheckLine]) -> list[CheckLine]:
    return [line for line in lines if line.kind is Kind.CLAIM]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_sound_decoder_passes_and_every_control_is_caught(dtype: torch.dtype) -> None:
    lines = run(made_of(CodecDecoder, dtype))
    assert [line for line in lines if line.bad] == []
    assert {line.claim for line in lines if line.kind is Kind.CONTROL} == CONTROLS
    assert {line.where.dtype for line in claims(lines)} == {str(dtype).removeprefix("torch."), "float64"}


@pytest.mark.parametrize("kind", [Forgetful, Short])
def test_a_faulty_decoder_fails(kind: type[CodecDecoder]) -> None:
    failed = {line.claim for line in claims(run(made_of(kind))) if line.bad}
    assert "decode in windows = in one call" in failed
    assert "streams interleaved = each alone" in failed


def test_a_decoder_that_ignores_its_input_cannot_hide() -> None:
    """Everything equals everything on silence, so the controls are not caught, and the run fails."""
    decoder = made_of(CodecDecoder)
    decoder.get_parameter(f"decoder.{len(decoder.decoder) - 1}.conv.weight").data.zero_()
    lines = run(decoder)
    missed = {line.claim for line in lines if line.verdict is Verdict.NOT_CAUGHT}
    assert missed >= CONTROLS - {"slot without a lease"}
    assert not tally(lines).passed


def layers_of(depth_frames: int = DEPTH.layer_frames) -> list[CheckLine]:
    subject = toy_subject(depth=replace(DEPTH, layer_frames=depth_frames))
    with torch.inference_mode():
        return list(codec_layers.check_codec_layers(subject))


def test_every_layer_is_checked_and_every_history_has_its_control() -> None:
    lines = layers_of()
    assert [line for line in lines if line.bad] == []
    checked = [line.setting.split(",")[0] for line in claims(lines)]
    layers = codec_layers.codec_layers(tiny_decoder())
    assert checked == [layer.name for layer in layers]
    controlled = {line.setting.split(",")[0] for line in lines if line.kind is Kind.CONTROL}
    assert controlled == {layer.name for layer in layers if layer.stateful}


def test_a_unit_that_is_passed_has_no_history_to_drop() -> None:
    decoder = tiny_decoder()
    block = decoder.decoder[1]
    assert isinstance(block, DecoderBlock)
    unit = block.block[3]
    assert isinstance(unit, ResidualUnit)
    for parameter in unit.conv2.parameters():
        parameter.data.zero_()
    pass_idle_units(decoder.decoder)
    layer = next(each for each in codec_layers.codec_layers(decoder) if each.name == "decoder.1.block.3")
    assert not layer.stateful
    x = torch.randn(1, 6, 4)
    assert torch.equal(codec_layers.in_windows(layer, x, [1, 2, 3]), x)
    codes = toy_subject().codes(40, salt=1)
    with torch.inference_mode():  # the whole group's controls take a decoder without the unit too
        whole, short = decoder(decoder.fresh(1), codes)[0], codec.shorter_window(decoder, codes)
    assert short.shape == whole.shape
    assert not torch.equal(short, whole)


def test_the_layers_in_order_are_the_decoder() -> None:
    """Run one after the other they give the decoder's samples (before its clamp): no layer was left out."""
    decoder = tiny_decoder()
    codes = toy_subject().codes(5, salt=1)
    x = codes
    with torch.inference_mode():
        for layer in codec_layers.codec_layers(decoder):
            x, _ = layer.step(x, codec_layers.fresh_of(layer, x, torch.float32))
        samples, _ = decoder.forward(decoder.fresh(1), codes)
    assert torch.allclose(x[..., 0].clamp(-1, 1), samples, atol=1e-6)


@pytest.mark.parametrize(
    ("fault", "layer"),
    [("legato.models.layers.conv.advance", "pre_conv"), ("legato.models.layers.attention.advance", "layers.0")],
)
def test_a_layer_that_forgets_is_named(monkeypatch: pytest.MonkeyPatch, fault: str, layer: str) -> None:
    def forgets(joined: Tensor, keep: int, _lengths: Tensor | None, dim: int) -> Tensor:
        return torch.zeros_like(joined.narrow(dim, 0, keep))

    monkeypatch.setattr(fault, forgets)
    failed = [line.setting for line in layers_of() if line.bad and line.kind is Kind.CLAIM]
    assert any(layer in setting for setting in failed)


def test_partitions_sum_up() -> None:
    cuts = partitions(310, 3)
    assert set(cuts) == set(ALL)
    assert all(sum(sizes) == 310 and min(sizes) > 0 for sizes in cuts.values())
    assert cuts["random windows"] != partitions(310, 4)["random windows"]


def test_the_worked_example_is_the_documents() -> None:
    lines = list(convolution.check_convolution(torch.device("cpu")))
    assert tally(lines).passed
    assert all(line.comparison.max_abs == 0.0 for line in claims(lines))
    assert convolution.worked_by_hand() == [0, 3, 8, 14, 20, 26, 32, 38, 44, 50, 56, 62]


def test_a_convolution_that_forgets_fails_the_worked_example(monkeypatch: pytest.MonkeyPatch) -> None:
    def forgets(joined: Tensor, keep: int, _lengths: Tensor | None, dim: int) -> Tensor:
        return torch.zeros_like(joined.narrow(dim, 0, keep))

    monkeypatch.setattr("legato.models.layers.conv.advance", forgets)
    failed = [line for line in convolution.check_convolution(torch.device("cpu")) if line.bad]
    first = next(line for line in failed if line.setting == "windows of 3, 4, 5").comparison.first[0]
    assert (first.place, first.got, first.expected) == ((("position", 3),), 9.0, 14.0)
