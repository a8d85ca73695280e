"""Parts that claim batch invariance are bit-identical in any batch; PyTorch parts do not claim it."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from legato.backends.base import Backend, BatchInvariance, FrameInputs
from legato.backends.select import build_backend, load_backend
from legato.kernels.build import Unavailable
from legato.kernels.library import library
from legato.models.sampling import SamplingRows
from legato.models.talker.state import KVRows, TalkerCache, poison
from legato.types import SamplingParams
from legato.weights.loading import load_model
from tests.conftest import TinyCheckpoint

NATIVE = pytest.mark.skipif(isinstance(library(), Unavailable), reason="no CPU kernels here")
WARM = SamplingParams(
    temperature=0.9,
    top_k=12,
    top_p=1.0,
    repetition_penalty=1.05,
    predictor_temperature=0.9,
    predictor_top_k=12,
    predictor_top_p=0.95,
)
SLOTS, POSITIONS = 8, 12


@pytest.fixture(scope="module", params=["none", "int8", "int4"])
def backend(request: pytest.FixtureRequest, tiny_checkpoint: TinyCheckpoint) -> Backend:
    quant: str = request.param
    return load_backend(tiny_checkpoint("tiny-custom-voice"), quant=quant)


@NATIVE
def test_native_parts_are_batch_invariant(backend: Backend) -> None:
    assert backend.batch_invariance == BatchInvariance(talker=True, first_code=True, predictor=True, codec=True)


def test_pytorch_parts_do_not_claim_batch_invariance(tiny_checkpoint: TinyCheckpoint) -> None:
    backend = build_backend(load_model(tiny_checkpoint("tiny-custom-voice")), native=False)
    assert backend.batch_invariance == BatchInvariance(talker=False, first_code=False, predictor=False, codec=False)
    half = load_backend(tiny_checkpoint("tiny-custom-voice"), dtype="bfloat16")
    assert not half.batch_invariance.talker
    assert not half.batch_invariance.predictor


def spoken(backend: Backend, frames: Tensor, tokens: Tensor, slots: list[int], noise: Tensor) -> tuple[Tensor, ...]:
    """Hidden states of two steps, the logits of codebook 0 after them, and the sampled frames."""
    model = backend.model
    cache = TalkerCache.allocate(model.config.talker.stack, SLOTS, POSITIONS, model.cache_dtype)
    poison(cache, KVRows.of(range(SLOTS)))
    hidden: list[Tensor] = []
    for index in range(2):
        starts, rows = torch.full((len(slots),), index), KVRows.of(slots)
        hidden.append(backend.decode_step(cache, frames[:, index], tokens[:, index], rows, starts, span=index + 1))
    settings = SamplingRows.of([WARM] * len(slots)).residual
    inputs = FrameInputs(
        hidden=hidden[-1],
        first_code=frames[:, 1, 0],
        temperature=settings.temperature,
        top_k=settings.top_k,
        top_p=settings.top_p,
        noise=noise,
    )
    drawn = backend.predict_frame(inputs)
    return (*hidden, backend.talker.first_code_logits(hidden[-1]), drawn.codes)


@NATIVE
@settings(max_examples=20, deadline=None)
@given(slots=st.lists(st.integers(0, SLOTS - 1), min_size=2, max_size=SLOTS, unique=True), seed=st.integers(0, 99))
def test_row_is_the_same_alone_and_batched(backend: Backend, slots: list[int], seed: int) -> None:
    model = backend.model
    source, B, Q = torch.Generator().manual_seed(seed), len(slots), model.config.talker.num_codebooks
    frames = torch.randint(0, model.config.code_predictor.codebook_size, (B, 2, Q), generator=source)
    tokens = torch.randint(0, 50, (B, 2, 1), generator=source)
    noise = torch.rand(B, Q, dtype=torch.float64, generator=source)
    with torch.inference_mode():
        together = spoken(backend, frames, tokens, slots, noise)
        for row in range(B):
            one = slice(row, row + 1)
            alone = spoken(backend, frames[one], tokens[one], [slots[row] // 2], noise[one])
            assert all(torch.equal(mine[one], its) for mine, its in zip(together, alone, strict=True))
    assert not torch.equal(together[1][:1], together[1][1:2])
