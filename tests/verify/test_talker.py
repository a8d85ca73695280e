"""Talker and code predictor: the checks pass as they are, and each fault put into the models turns them red."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor

from legato.models.layers.decoder_layer import attend
from legato.models.load import LoadedModel
from legato.models.talker.backbone import Talker
from legato.models.talker.state import KVRows, TalkerCache
from legato.verify import predictor, talker
from legato.verify.lines import CheckLine, Kind, Verdict, tally
from tests.engine.tiny import tiny_talker
from tests.verify.toy import toy_model, toy_rounded_model, toy_subject


def run_talker(model: LoadedModel | None = None) -> list[CheckLine]:
    with torch.inference_mode():
        return list(talker.check_talker(toy_subject(model)))


def run_predictor(model: LoadedModel | None = None) -> list[CheckLine]:
    with torch.inference_mode():
        return list(predictor.check_predictor(toy_subject(model)))


def failed(lines: list[CheckLine]) -> set[str]:
    return {line.claim for line in lines if line.verdict is Verdict.DIFFERENT}


def test_a_sound_talker_passes() -> None:
    lines = run_talker()
    assert [line for line in lines if line.bad] == []
    assert sum(line.kind is Kind.CONTROL for line in lines) == 3
    assert {line.where.path for line in lines} == {"each row reads its own past", talker.FIXED_SHAPES}


class Amnesiac(Talker):
    """Forgets what was before each call."""

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


def test_a_talker_that_forgets_fails() -> None:
    broken = Amnesiac(tiny_talker().config)
    broken.load_state_dict(tiny_talker().state_dict())
    model = toy_model()
    lines = run_talker(
        LoadedModel(model.folder, model.config, broken.eval(), model.code_predictor, model.decoder, None, None, None)
    )
    assert failed(lines) == {"cached = whole", "rows of a batch = each alone"}


def test_a_talker_without_memory_cannot_hide() -> None:
    """One whose attention adds nothing needs no cache: then the controls are not caught, and the run fails."""
    broken = copy.deepcopy(tiny_talker())
    for name, parameter in broken.named_parameters():
        if name.endswith("o_proj.weight"):
            parameter.data.zero_()
    model = toy_model()
    lines = run_talker(
        LoadedModel(model.folder, model.config, broken, model.code_predictor, model.decoder, None, None, None)
    )
    assert failed(lines) == set()
    assert any(line.verdict is Verdict.NOT_CAUGHT for line in lines)
    assert not tally(lines).passed


def test_half_precision_is_judged_by_what_it_costs() -> None:
    for lines in (run_talker(toy_model(in_bfloat16=True)), run_predictor(toy_model(in_bfloat16=True))):
        assert [line for line in lines if line.bad] == []
        assert tally(lines).passed
        assert any("bfloat16 costs" in line.tolerance.reason for line in lines)


@pytest.mark.parametrize("quant", ["int8", "int4"])
def test_rounded_weights_are_judged_by_what_rounding_costs(quant: str) -> None:
    """Cache and scratch hold within it, and what drops them is still caught."""
    for lines in (run_talker(toy_rounded_model(quant)), run_predictor(toy_rounded_model(quant))):
        assert [line for line in lines if line.bad] == []
        assert tally(lines).passed
        assert any(f"{quant} weights costs" in line.tolerance.reason for line in lines)
        assert any(line.kind is Kind.CONTROL for line in lines)


def test_a_sound_predictor_passes() -> None:
    lines = run_predictor()
    assert [line for line in lines if line.bad] == []
    assert sum(line.kind is Kind.CONTROL for line in lines) == 4


def test_a_scratch_that_loses_its_first_position_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def loses(keys: Tensor, values: Tensor, queries: Tensor, visible: Tensor | None) -> Tensor:
        if keys.shape[2] > 2:
            keys, values = keys[:, :, 1:], values[:, :, 1:]
            visible = None
        return attend(queries, keys, values, visible)

    monkeypatch.setattr(
        "legato.models.code_predictor.predict.attend",
        lambda queries, keys, values, visible: loses(keys, values, queries, visible),
    )
    assert "logits step by step = in one call" in failed(run_predictor())


def test_noise_taken_from_another_row_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    from legato.models.sampling import Drawn, DrawSettings, draw

    def crossed(logits: Tensor, settings: DrawSettings, uniform: Tensor) -> Drawn:
        return draw(logits, settings, uniform.roll(1))

    monkeypatch.setattr("legato.models.code_predictor.predict.draw", crossed)
    assert {"codes = those drawn from one call's logits", "codes of a batch = each alone"} <= failed(run_predictor())
