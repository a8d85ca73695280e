"""The codec checks pass on a sound decoder, and fail on decoders with a fault."""

from __future__ import annotations

import io

import pytest
import torch
from rich.console import Console
from torch import Tensor

from legato.models.codec.decoder import CodecDecoder
from legato.models.codec.state import CodecHistory
from legato.verify.codec import largest_error, run_codec_checks
from legato.verify.lines import CheckLine, check_table
from tests.models.codec.tiny_codec import DECODER, tiny_decoder

CONTROLS = {
    "convolution history dropped",
    "overlap dropped",
    "attention window one short",
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
    """Loses a constant number of samples in every window (R03)."""

    def forward(
        self, history: CodecHistory, codes: Tensor, frames: Tensor | None = None
    ) -> tuple[Tensor, CodecHistory]:
        samples, after = super().forward(history, codes, frames)
        return samples[:, :-5], after


def faulty(kind: type[CodecDecoder]) -> CodecDecoder:
    decoder = kind(DECODER).double()
    decoder.load_state_dict(tiny_decoder().state_dict())
    return decoder


def test_a_sound_decoder_passes_and_every_control_is_caught() -> None:
    dtypes = (torch.float64, torch.float32, torch.bfloat16)
    lines = run_codec_checks(tiny_decoder(dtype=torch.float32), frames=40, dtypes=dtypes)
    assert [line for line in lines if not line.passed] == []
    assert {line.claim for line in lines if line.control} == CONTROLS
    assert {line.dtype for line in lines if not line.control} == {"float64", "float32", "bfloat16"}


@pytest.mark.parametrize("kind", [Forgetful, Short])
def test_a_faulty_decoder_fails(kind: type[CodecDecoder]) -> None:
    lines = run_codec_checks(faulty(kind), frames=20, dtypes=(torch.float64,))
    failed = {line.claim for line in lines if not line.passed}
    assert "streamed = whole" in failed
    assert "streams interleaved = alone" in failed


def test_a_decoder_that_ignores_its_input_cannot_hide() -> None:
    """Everything equals everything on silence, so the controls must not be caught."""
    decoder = tiny_decoder()
    decoder.get_parameter(f"decoder.{len(decoder.decoder) - 1}.conv.weight").data.zero_()
    lines = run_codec_checks(decoder, frames=10, dtypes=())
    assert {line.claim for line in lines if line.control and not line.passed} >= CONTROLS - {"slot without a lease"}


def test_nan_and_lost_samples_are_infinite_errors() -> None:
    assert largest_error(torch.tensor([[float("nan")]]), torch.zeros(1, 1)) == float("inf")
    assert largest_error(torch.zeros(1, 3), torch.zeros(1, 4)) == float("inf")
    assert largest_error(torch.tensor([[0.5]]), torch.tensor([[0.25]])) == 0.25


def test_the_table_says_which_failed() -> None:
    lines = [
        CheckLine("claim", "here", "float32", 1.0, 0.5),
        CheckLine("fault", "there", "float64", 0.0, 0.5, control=True),
        CheckLine("claim", "else", "float32", 0.0, 0.5),
    ]
    console = Console(file=io.StringIO(), width=120)
    console.print(check_table(lines, "codec"))
    assert isinstance(console.file, io.StringIO)
    shown = console.file.getvalue()
    assert "DIFFERENT" in shown
    assert "NOT CAUGHT" in shown
    assert shown.count("equal") == 1
