"""A frame in one native call equals the frame step by step, with and without projection; rows are independent."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from legato.backends.base import Backend, FrameInputs
from legato.backends.cpu import backend as cpu_backend
from legato.backends.cpu.frame import frame_library
from legato.backends.select import load_backend
from legato.kernels.build import Unavailable
from legato.kernels.library import library
from legato.models.sampling import Sampled, SamplingRows
from legato.types import SamplingParams
from tests.conftest import TinyCheckpoint

pytestmark = pytest.mark.skipif(isinstance(library(), Unavailable), reason="no CPU kernels here")
GREEDY = SamplingParams(
    temperature=0.0,
    top_k=0,
    top_p=1.0,
    repetition_penalty=1.0,
    predictor_temperature=0.0,
    predictor_top_k=0,
    predictor_top_p=1.0,
)
WARM = SamplingParams(
    temperature=0.9,
    top_k=50,
    top_p=1.0,
    repetition_penalty=1.05,
    predictor_temperature=0.9,
    predictor_top_k=20,
    predictor_top_p=0.95,
)
B = 9


CHECKPOINT_KINDS = (
    ("tiny-custom-voice", "int8"),
    ("tiny-custom-voice-wide", "int8"),
    ("tiny-embedded", "int8"),
    ("tiny-custom-voice", "none"),
    ("tiny-custom-voice-wide", "none"),
)


@pytest.fixture(scope="module", params=CHECKPOINT_KINDS, ids="-".join)
def model(request: pytest.FixtureRequest, tiny_checkpoint: TinyCheckpoint) -> Backend:
    like, quant = request.param
    return load_backend(tiny_checkpoint(like), quant=quant)


def given(model: Backend) -> tuple[Tensor, Tensor, Tensor]:
    """Hidden states, first codes, noise."""
    source, config = torch.Generator().manual_seed(4), model.model.config.code_predictor
    hidden = torch.randn(B, model.model.config.talker.stack.hidden_size, generator=source)
    first = torch.randint(0, config.codebook_size, (B,), generator=source)
    return hidden, first, torch.rand(B, config.num_codebooks, dtype=torch.float64, generator=source)


def frames(model: Backend, data: tuple[Tensor, Tensor, Tensor]) -> Sampled:
    hidden, first, noise = data
    settings = SamplingRows.of([GREEDY if row % 4 == 3 else WARM for row in range(len(first))]).residual
    inputs = FrameInputs(
        hidden=hidden,
        first_code=first,
        temperature=settings.temperature,
        top_k=settings.top_k,
        top_p=settings.top_p,
        noise=noise,
    )
    with torch.inference_mode():
        return model.predict_frame(inputs)


def test_one_call_equals_the_steps(model: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    """Up to the rounding of the norm before the logits, which is summed in another order."""
    data = given(model)
    assert frame_library(model.code_predictor, data[0].dtype) is not None
    together = frames(model, data)
    assert together.codes.shape == data[2].shape
    assert torch.equal(together.codes[:, 0], data[1])
    assert together.finite.all()
    monkeypatch.setattr(cpu_backend, "frame_library", lambda *_: None)
    steps = frames(model, data).codes
    assert (together.codes == steps).all(1).sum() >= B - 1
    assert (together.codes == frames(model, (data[0], data[1], data[2].roll(1, 0))).codes).float().mean() < 0.8


def test_rows_are_the_same_alone_and_with_a_non_finite_row(model: Backend) -> None:
    hidden, first, noise = given(model)
    together = frames(model, (hidden, first, noise)).codes
    for row in (0, 1, 2):
        alone = frames(model, (hidden[row : row + 1], first[row : row + 1], noise[row : row + 1]))
        assert torch.equal(alone.codes[0], together[row])
    broken = hidden.clone()
    broken[5] = float("nan")
    drawn = frames(model, (broken, first, noise))
    others = [row for row in range(B) if row != 5]
    assert drawn.finite.tolist() == [row != 5 for row in range(B)]
    assert torch.equal(drawn.codes[others], together[others])
    assert torch.equal(drawn.codes[5, 1:], torch.zeros_like(noise[5, 1:], dtype=torch.int64))
