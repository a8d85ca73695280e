"""The CUDA graph checks: not applicable on a CPU; on a device correct graphs pass and faulty ones fail."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace

import pytest
import torch

from legato.backends import cuda_capture as captured
from legato.backends import cuda_graphs as graphs
from legato.verify.cuda_graphs import check_cuda_graphs
from legato.verify.results import CheckLine, Kind, Verdict
from tests.fake_cuda import fake_cuda, on_device
from tests.verify.toy import toy_model, toy_target


@pytest.fixture(params=[fake_cuda, pytest.param(nullcontext, marks=pytest.mark.cuda)], ids=["fake", "real"])
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
    return list(check_cuda_graphs(replace(toy_target(model), cuda_graphs=graphs)))


def test_not_applicable_on_cpu() -> None:
    (line,) = check_cuda_graphs(toy_target())
    assert line.kind is Kind.NOT_APPLICABLE
    assert "CUDA only" in line.note
    assert not line.bad


@pytest.mark.usefixtures("device")
def test_not_applicable_without_cuda_graphs() -> None:
    (line,) = lines(graphs=False)
    assert line.kind is Kind.NOT_APPLICABLE
    assert "--no-cuda-graphs" in line.note
    for recorded in (True, False):
        target = replace(toy_target(), cuda_graphs=recorded)
        assert target.engine_config(max_num_seqs=1, deterministic=True).cuda_graphs == recorded


@pytest.mark.usefixtures("device")
def test_correct_graphs_pass_and_faults_are_caught() -> None:
    found = lines()
    assert [line for line in found if line.bad] == []
    assert [line.verdict for line in found] == [Verdict.EQUAL, Verdict.DETECTED] * 3


def test_graph_that_ignores_its_inputs_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    class IgnoresInputs(captured.Captured):
        """Replays with the inputs of the capture."""

        def __call__(self, *given: torch.Tensor) -> tuple[torch.Tensor, ...]:
            self._graph.replay()
            return tuple(each[: given[0].shape[0]].clone() for each in self._results)

    monkeypatch.setattr(graphs, "Captured", IgnoresInputs)
    with fake_cuda(), torch.inference_mode():
        claims = [line for line in lines() if line.kind is Kind.CLAIM]
    assert all(line.verdict is Verdict.DIFFERENT for line in claims)
