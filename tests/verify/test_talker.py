"""The checks of talker and code predictor pass on correct models and fail for each injected fault."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor

from legato.backends.base import Backend
from legato.models.layers.attention import attention
from legato.models.talker.backbone import Talker
from legato.models.talker.state import KVRows, TalkerCache
from legato.verify import predictor, talker
from legato.verify.results import CheckLine, Kind, Verdict, tally
from legato.weights.loading import LoadedModel
from tests.engine.tiny import tiny_talker
from tests.verify.toy import toy_model, toy_quantized_backend, toy_target


def run_talker(model: Backend | LoadedModel | None = None) -> list[CheckLine]:
    with torch.inference_mode():
        return list(talker.check_talker(toy_target(model)))


def run_predictor(model: Backend | LoadedModel | None = None) -> list[CheckLine]:
    with torch.inference_mode():
        return list(predictor.check_predictor(toy_target(model)))


def failed(lines: list[CheckLine]) -> set[str]:
    return {line.claim for line in lines if line.verdict is Verdict.DIFFERENT}


def test_correct_talker_passes() -> None:
    lines = run_talker()
    assert [line for line in lines if line.bad] == []
    assert sum(line.kind is Kind.CONTROL for line in lines) == 3
    assert {line.execution.path for line in lines} == {"each row reads its own past", talker.FIXED_SHAPES}


class DropsHistory(Talker):
    """Ignores the positions before each call."""

    def forward_all(
        self,
        cache: TalkerCache,
        rows: KVRows,
        x: Tensor,
        starts: Tensor,
        lengths: Tensor | None = None,
        *,
        span: int | None = None,
    ) -> Tensor:
        return super().forward_all(cache, rows, x, torch.zeros_like(starts), lengths, span=span)


def test_talker_that_ignores_its_past_fails() -> None:
    broken = DropsHistory(tiny_talker().config)
    broken.load_state_dict(tiny_talker().state_dict())
    model = toy_model()
    lines = run_talker(LoadedModel(model.folder, model.config, broken.eval(), model.code_predictor, model.decoder))
    assert failed(lines) == {"cached = uncached", "rows of a batch = single rows"}


def test_talker_without_attention_fails() -> None:
    """If attention adds nothing, the cache has no effect: the injected faults are not detected and the run fails."""
    broken = copy.deepcopy(tiny_talker())
    for name, parameter in broken.named_parameters():
        if name.endswith("o_proj.weight"):
            parameter.data.zero_()
    model = toy_model()
    lines = run_talker(LoadedModel(model.folder, model.config, broken, model.code_predictor, model.decoder))
    assert failed(lines) == set()
    assert any(line.verdict is Verdict.NOT_DETECTED for line in lines)
    assert not tally(lines).passed


def test_half_precision_tolerance_is_relative_to_its_own_error() -> None:
    for lines in (run_talker(toy_model(in_bfloat16=True)), run_predictor(toy_model(in_bfloat16=True))):
        assert [line for line in lines if line.bad] == []
        assert tally(lines).passed
        assert any("error of bfloat16" in line.tolerance.reason for line in lines)


@pytest.mark.parametrize("quant", ["int8", "int4"])
def test_quantized_tolerance_is_relative_to_its_own_error(quant: str) -> None:
    """KV cache and scratch cache stay within it; dropping them is still detected."""
    for lines in (run_talker(toy_quantized_backend(quant)), run_predictor(toy_quantized_backend(quant))):
        assert [line for line in lines if line.bad] == []
        assert tally(lines).passed
        assert any(f"{quant} weights in the whole" in line.tolerance.reason for line in lines)
        assert any(line.kind is Kind.CONTROL for line in lines)


def test_correct_predictor_passes() -> None:
    lines = run_predictor()
    assert [line for line in lines if line.bad] == []
    assert sum(line.kind is Kind.CONTROL for line in lines) == 4


def test_scratch_cache_without_its_first_position_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def without_first(keys: Tensor, values: Tensor, queries: Tensor, visible: Tensor | None) -> Tensor:
        if keys.shape[2] > 2:
            keys, values = keys[:, :, 1:], values[:, :, 1:]
            visible = None
        return attention(queries, keys, values, visible)

    monkeypatch.setattr(
        "legato.models.code_predictor.predict.attention",
        lambda queries, keys, values, visible: without_first(keys, values, queries, visible),
    )
    assert "logits step by step = in one call" in failed(run_predictor())


def test_noise_of_another_row_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    from legato.models.sampling import Sampled, SamplerSettings, sample

    def other_row(logits: Tensor, settings: SamplerSettings, uniform: Tensor) -> Sampled:
        return sample(logits, settings, uniform.roll(1))

    monkeypatch.setattr("legato.models.code_predictor.predict.sample", other_row)
    assert {"codes = codes sampled from one call's logits", "codes of a batch = codes of single rows"} <= failed(
        run_predictor()
    )
