"""Recorded work: nothing to check on a CPU; on a device what is sound passes, and what is not is found."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace

import pytest
import torch

from legato.engine import captured, graphs
from legato.verify.lines import CheckLine, Kind, Verdict
from legato.verify.recorded import check_recorded
from tests.fake_cuda import fake_cuda, on_device
from tests.verify.toy import toy_model, toy_subject


@pytest.fixture(params=[fake_cuda, pytest.param(nullcontext, marks=pytest.mark.cuda)], ids=["in name", "real"])
def device(request: pytest.FixtureRequest) -> Iterator[None]:
    there: Callable[[], AbstractContextManager[None]] = request.param
    with there(), torch.inference_mode():
        yield


def lines(*, graphs: bool = True) -> list[CheckLine]:
    model = toy_model()
    model = replace(
        model,
        talker=copy.deepcopy(model.talker),
        code_predictor=copy.deepcopy(model.code_predictor),
        decoder=copy.deepcopy(model.decoder),
    )
    for module in (model.talker, model.code_predictor, model.decoder):
        on_device(module)
    return list(check_recorded(replace(toy_subject(model), graphs=graphs)))


def test_on_a_cpu_there_is_nothing_to_check() -> None:
    (line,) = check_recorded(toy_subject())
    assert line.kind is Kind.NOT_APPLICABLE
    assert "CUDA alone" in line.note
    assert not line.bad


@pytest.mark.usefixtures("device")
def test_without_graphs_there_is_nothing_to_check_either() -> None:
    (line,) = lines(graphs=False)
    assert line.kind is Kind.NOT_APPLICABLE
    assert "--no-graphs" in line.note
    for recorded in (True, False):
        subject = replace(toy_subject(), graphs=recorded)
        assert subject.engine_config(streams=1, deterministic=True).graphs == recorded


@pytest.mark.usefixtures("device")
def test_sound_recordings_pass_and_faults_are_caught() -> None:
    found = lines()
    assert [line for line in found if line.bad] == []
    assert [line.verdict for line in found] == [Verdict.EQUAL, Verdict.CAUGHT] * 3


def test_inputs_that_do_not_reach_a_recording_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    class Deaf(captured.Captured):
        """Computes with what it was recorded with."""

        def __call__(self, *given: torch.Tensor) -> tuple[torch.Tensor, ...]:
            self._graph.replay()
            return tuple(each[: given[0].shape[0]].clone() for each in self._results)

    monkeypatch.setattr(graphs, "Captured", Deaf)
    with fake_cuda(), torch.inference_mode():
        claims = [line for line in lines() if line.kind is Kind.CLAIM]
    assert all(line.verdict is Verdict.DIFFERENT for line in claims)
