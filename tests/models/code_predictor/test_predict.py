"""Predicting a frame step by step equals one uncached call, whatever the scratch contained before.

Weights are tiny and random. Negative controls show that the checks detect faults.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from legato.models.code_predictor.predict import frame_logits_uncached, predict_frame
from legato.models.code_predictor.predictor import CodePredictor
from legato.models.sampling import Sampled, SamplerSettings, SamplingRows, sample
from legato.types import SamplingParams
from tests.models.tiny_talker import CODEBOOKS, CODES, make_predictor

GREEDY = SamplingParams(0.0, 0, 1.0, 1.0, 0.0, 0, 1.0)
WARM = SamplingParams(0.9, 50, 1.0, 1.05, 0.9, 20, 0.95)
TALKER_WIDTH = 32


def talker_embedding(dtype: torch.dtype = torch.float64) -> nn.Embedding:
    torch.manual_seed(7)
    return nn.Embedding(CODES + 8, TALKER_WIDTH).to(dtype)


def frames(rows: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Hidden states, first codes and noise."""
    source = torch.Generator().manual_seed(seed)
    hidden = torch.randn(rows, TALKER_WIDTH, dtype=dtype, generator=source)
    first = torch.randint(0, CODES, (rows,), generator=source)
    return hidden, first, torch.rand(rows, CODEBOOKS, dtype=torch.float64, generator=source)


def residual(*rows: SamplingParams) -> SamplerSettings:
    return SamplingRows.of(rows).residual


@pytest.fixture
def poisoned_memory(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fill the scratch of a frame, which is uninitialized, with NaN."""
    made: list[Tensor] = []

    def poisoned(like: Tensor, shape: tuple[int, ...]) -> Tensor:
        made.append(like.new_full(shape, float("nan")))
        return made[-1]

    monkeypatch.setattr(Tensor, "new_empty", poisoned)
    yield
    assert made, "no scratch was allocated"


def run(
    predictor: CodePredictor, embedding: nn.Module, data: tuple[Tensor, Tensor, Tensor], how: SamplingParams
) -> Sampled:
    hidden, first, noise = data
    with torch.inference_mode():
        return predict_frame(predictor, embedding, hidden, first, settings=residual(*[how] * len(first)), noise=noise)


@pytest.mark.parametrize("how", [GREEDY, WARM])
@pytest.mark.parametrize("width", [32, 24])
@pytest.mark.usefixtures("poisoned_memory")
def test_step_by_step_equals_the_whole_frame(how: SamplingParams, width: int) -> None:
    """Sampling from the logits of one call over the sampled frame gives the same frame, with and without projection."""
    predictor, embedding = make_predictor(width=width, dtype=torch.float64), talker_embedding()
    data = frames(6)
    sampled = run(predictor, embedding, data, how)
    assert sampled.codes.shape == (6, CODEBOOKS)
    assert torch.equal(sampled.codes[:, 0], data[1])
    assert sampled.finite.all()
    assert uncached_agrees(predictor, embedding, data, sampled, how)


def uncached_agrees(
    predictor: CodePredictor,
    embedding: nn.Module,
    data: tuple[Tensor, Tensor, Tensor],
    sampled: Sampled,
    how: SamplingParams,
) -> bool:
    hidden, _, noise = data
    with torch.inference_mode():
        logits = frame_logits_uncached(predictor, embedding, hidden, sampled.codes)
    again = [sample(logits[:, j], residual(*[how] * len(hidden)), noise[:, j + 1]).codes for j in range(CODEBOOKS - 1)]
    return torch.equal(torch.stack(again, dim=1), sampled.codes[:, 1:])


@pytest.mark.parametrize("fault", ["hidden of another row", "other first code", "no query norm", "noise shifted"])
def test_control_fault_is_detected(fault: str) -> None:
    predictor, embedding, data = make_predictor(dtype=torch.float64), talker_embedding(), frames(6)
    sampled = run(predictor, embedding, data, WARM)
    hidden, first, noise = data
    codes = sampled.codes.clone()
    if fault == "hidden of another row":
        hidden = hidden.roll(1, dims=0)
    elif fault == "other first code":
        codes[:, 0] = (codes[:, 0] + 1) % CODES
    elif fault == "noise shifted":
        noise = noise.roll(1, dims=1)
    else:
        with torch.no_grad():
            for name, parameter in predictor.named_parameters():
                if "q_norm" in name:
                    parameter.fill_(1.0)
    assert not uncached_agrees(predictor, embedding, (hidden, first, noise), Sampled(codes, sampled.finite), WARM)


def test_stepwise_logits_equal_uncached_logits_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    """Within 1e-4 over all steps (R67); control: the logits of the next codebook differ by more."""
    predictor, embedding, data = make_predictor(), talker_embedding(torch.float32), frames(4, torch.float32)
    seen: list[Tensor] = []
    plain = CodePredictor.logits

    def recorded(self: CodePredictor, hidden: Tensor, residual: int) -> Tensor:
        seen.append(plain(self, hidden, residual))
        return seen[-1]

    monkeypatch.setattr(CodePredictor, "logits", recorded)
    sampled = run(predictor, embedding, data, GREEDY)
    stepwise = torch.stack(seen, dim=1)
    seen.clear()
    with torch.inference_mode():
        whole = frame_logits_uncached(predictor, embedding, data[0], sampled.codes)
    assert (stepwise - whole).abs().max() < 1e-4
    assert (stepwise - whole.roll(1, dims=1)).abs().max() > 1.0


@settings(max_examples=15, deadline=None)
@given(order=st.permutations(range(5)), keep=st.integers(1, 5))
def test_row_does_not_depend_on_the_batch(order: list[int], keep: int) -> None:
    """Any subset in any order gives the same frames, each row with its own settings."""
    predictor, embedding = make_predictor(dtype=torch.float64), talker_embedding()
    hidden, first, noise = frames(5)
    hows = [GREEDY, WARM, WARM, GREEDY, SamplingParams(1.0, 0, 1.0, 1.0, 1.5, 3, 1.0)]
    with torch.inference_mode():
        together = predict_frame(predictor, embedding, hidden, first, settings=residual(*hows), noise=noise).codes
        chosen = order[:keep]
        some = predict_frame(
            predictor,
            embedding,
            hidden[chosen],
            first[chosen],
            settings=residual(*[hows[row] for row in chosen]),
            noise=noise[chosen],
        ).codes
    assert torch.equal(some, together[chosen])
    assert len({tuple(row) for row in together.tolist()}) == 5


@pytest.mark.usefixtures("poisoned_memory")
def test_frame_does_not_depend_on_earlier_frames() -> None:
    """No state of the predictor outlives a call."""
    predictor, embedding = make_predictor(dtype=torch.float64), talker_embedding()
    before = {name: value.clone() for name, value in predictor.state_dict().items()}
    once = run(predictor, embedding, frames(2), WARM).codes
    run(predictor, embedding, frames(2, seed=8), WARM)
    again = run(predictor, embedding, frames(2), WARM).codes
    assert torch.equal(once, again)
    assert before.keys() == predictor.state_dict().keys()


def test_non_finite_row_is_marked_and_does_not_affect_others() -> None:
    predictor, embedding = make_predictor(dtype=torch.float64), talker_embedding()
    hidden, first, noise = frames(3)
    clean = run(predictor, embedding, (hidden, first, noise), WARM)
    broken = hidden.clone()
    broken[1] = float("nan")
    sampled = run(predictor, embedding, (broken, first, noise), WARM)
    assert sampled.finite.tolist() == [True, False, True]
    assert torch.equal(sampled.codes[[0, 2]], clean.codes[[0, 2]])
    assert ((sampled.codes >= 0) & (sampled.codes < CODES)).all()


def test_bfloat16_and_float32_mostly_have_the_same_argmax() -> None:
    """Logits of given frames are float32 with bfloat16 weights, and mostly have the same argmax (R67)."""
    low = make_predictor().to(torch.bfloat16)
    exact = make_predictor()
    exact.load_state_dict({name: weight.float() for name, weight in low.state_dict().items()})
    embedding = talker_embedding(torch.bfloat16)
    hidden, _, _ = frames(64, torch.bfloat16)
    codes = torch.randint(0, CODES, (64, CODEBOOKS), generator=torch.Generator().manual_seed(3))
    with torch.inference_mode():
        ours = frame_logits_uncached(low, embedding, hidden, codes)
        reference = frame_logits_uncached(exact, embedding.float(), hidden.float(), codes)
    assert ours.dtype == torch.float32
    agreement = (ours.argmax(-1) == reference.argmax(-1)).float().mean()
    assert agreement > 0.93
    assert (ours - reference).abs().max() < 0.06 * reference.abs().max()


def test_uncached_frame_has_gradients_for_all_used_weights() -> None:
    """All weights except the last residual embedding, which only the talker uses."""
    predictor, embedding = make_predictor(width=24), talker_embedding(torch.float32)
    hidden, _, _ = frames(8, torch.float32)
    codes = torch.randint(0, CODES, (8, CODEBOOKS), generator=torch.Generator().manual_seed(3))
    torch.autograd.backward(frame_logits_uncached(predictor, embedding, hidden, codes).logsumexp(-1).sum())
    without_gradient = [
        name for name, weight in predictor.named_parameters() if weight.grad is None or not weight.grad.abs().sum() > 0
    ]
    assert without_gradient == [f"model.codec_embedding.{CODEBOOKS - 2}.weight"]
