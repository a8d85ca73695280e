"""Parts that are said to give a row the same bits in any batch do; the others are not said to."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from legato.flow import Sampling
from legato.models.code_predictor.predict import predict_frame
from legato.models.invariance import BatchInvariant
from legato.models.load import LoadedModel, load_model
from legato.models.native.library import Missing, library
from legato.models.sampling import SamplingRows
from legato.models.talker.embed import next_input
from legato.models.talker.state import KVRows, TalkerCache, poison
from tests.conftest import TinyCheckpoint

COMPILED = pytest.mark.skipif(isinstance(library(), Missing), reason="nothing compiled here")
WARM = Sampling(0.9, 12, 1.0, 1.05, 0.9, 12, 0.95)
SLOTS, POSITIONS = 8, 12


@pytest.fixture(scope="module", params=["none", "int8", "int4"])
def model(request: pytest.FixtureRequest, tiny_checkpoint: TinyCheckpoint) -> LoadedModel:
    quant: str = request.param
    return load_model(tiny_checkpoint("tiny-custom-voice"), quant=quant)


@COMPILED
def test_what_is_compiled_is_invariant(model: LoadedModel) -> None:
    assert model.batch_invariant == BatchInvariant(talker=True, first_code=True, predictor=True, codec=True)


def test_what_torch_computes_is_not_said_to_be(tiny_checkpoint: TinyCheckpoint) -> None:
    model = load_model(tiny_checkpoint("tiny-custom-voice"), compiled=False)
    assert model.batch_invariant == BatchInvariant(talker=False, first_code=False, predictor=False, codec=False)
    half = load_model(tiny_checkpoint("tiny-custom-voice"), talker_dtype="bfloat16")
    assert not half.batch_invariant.talker
    assert not half.batch_invariant.predictor


def spoken(model: LoadedModel, frames: Tensor, tokens: Tensor, slots: list[int], noise: Tensor) -> tuple[Tensor, ...]:
    """Hidden states of two steps, the logits of codebook 0 after the last, and the frames drawn from it."""
    cache = TalkerCache.allocate(model.config.talker.stack, SLOTS, POSITIONS, model.cache_dtype)
    poison(cache, KVRows.of(range(SLOTS)))
    hidden: list[Tensor] = []
    for at in range(2):
        x = next_input(model.talker, model.code_predictor, frames[:, at], tokens[:, at])
        starts = torch.full((len(slots),), at)
        hidden.append(model.talker(cache, KVRows.of(slots), x[:, None], starts, span=at + 1))
    drawn = predict_frame(
        model.code_predictor,
        model.talker.model.codec_embedding,
        hidden[-1],
        frames[:, 1, 0],
        settings=SamplingRows.of([WARM] * len(slots)).residual,
        noise=noise,
    )
    return (*hidden, model.talker.first_code_logits(hidden[-1]), drawn.codes)


@COMPILED
@settings(max_examples=20, deadline=None)
@given(slots=st.lists(st.integers(0, SLOTS - 1), min_size=2, max_size=SLOTS, unique=True), seed=st.integers(0, 99))
def test_a_row_is_the_same_alone_and_in_company(model: LoadedModel, slots: list[int], seed: int) -> None:
    source, B, Q = torch.Generator().manual_seed(seed), len(slots), model.config.talker.num_codebooks
    frames = torch.randint(0, model.config.code_predictor.codebook_size, (B, 2, Q), generator=source)
    tokens = torch.randint(0, 50, (B, 2, 1), generator=source)
    noise = torch.rand(B, Q, dtype=torch.float64, generator=source)
    with torch.inference_mode():
        together = spoken(model, frames, tokens, slots, noise)
        for row in range(B):
            one = slice(row, row + 1)
            alone = spoken(model, frames[one], tokens[one], [slots[row] // 2], noise[one])
            assert all(torch.equal(mine[one], its) for mine, its in zip(together, alone, strict=True))
    assert not torch.equal(together[1][:1], together[1][1:2])
