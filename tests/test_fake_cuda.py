"""The fake CUDA device: it raises where a device would, and its graphs replay recorded operations."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from tests.fake_cuda import CaptureFaultError, DeviceMixError, fake_cuda, on_device, waits


def recorded(work: Callable[[], object]) -> torch.cuda.CUDAGraph:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return graph


def test_device_tensors_compute_the_same() -> None:
    with fake_cuda(), torch.inference_mode():
        x = torch.tensor([[1.0, 2.0], [3.0, 4.0]], device="cuda")
        for made in (x, torch.zeros(2, device="cuda:0"), x[0], x @ x.T, torch.full_like(x, 2), x.to(torch.int64)):
            assert made.device == torch.device("cuda", 0)
            assert made.is_cuda
        assert (x @ x.T).tolist() == [[5.0, 11.0], [11.0, 25.0]]
        x[1, 0] = 7.0
        x[:, 1:] += 1
        assert x.cpu().tolist() == [[1.0, 3.0], [7.0, 5.0]]
        assert int(x.argmax()) == 2
        layer = nn.Linear(2, 3)
        plain = layer(x.cpu())
        on_device(layer)
        assert layer(x).cpu().equal(plain)


def test_host_and_device_tensors_cannot_be_mixed() -> None:
    with fake_cuda(), torch.inference_mode():
        x, of_the_host = torch.ones(2, device="cuda"), torch.ones(2)
        meetings: list[Callable[[], object]] = [
            lambda: x + of_the_host,
            lambda: torch.stack([x, of_the_host]),
            lambda: nn.functional.linear(x[None], torch.ones(3, 2)),
            lambda: x[torch.tensor([0])],
            lambda: torch.embedding(x[:, None], torch.tensor(1)),
        ]
        for meet in meetings:
            with pytest.raises(DeviceMixError):
                meet()
        assert (x * torch.tensor(2.0)).tolist() == [2.0, 2.0]  # a scalar may
        x[:1] = of_the_host[:1]  # and so may a copy


def test_synchronizations_are_counted_and_refused_during_capture() -> None:
    with fake_cuda(), torch.inference_mode():
        x = torch.ones(3, device="cuda")
        assert waits() == []
        for wait in (
            lambda: x.tolist(),
            lambda: bool(x[0] > 0),
            lambda: x[x > 0],
            lambda: x.nonzero(),
            lambda: x.cpu(),
        ):
            before = len(waits())
            wait()
            assert len(waits()) == before + 1
            with pytest.raises(CaptureFaultError):
                recorded(wait)
        with pytest.raises(CaptureFaultError):
            recorded(lambda: torch.tensor([1.0, 2.0], device="cuda"))


def test_replay_uses_the_memory_and_host_values_of_the_capture() -> None:
    with fake_cuda(), torch.inference_mode():
        x, state, gain = torch.ones(2, device="cuda"), torch.zeros(2, device="cuda"), [3.0]
        results: list[Tensor] = []

        def work() -> None:
            state.add_(x)
            results[:] = [torch.cat([(x * gain[0]).view(1, 2)[0], state])]

        graph = recorded(work)
        assert not results[0].cpu().isfinite().all()  # capture computes nothing
        state.zero_()
        gain[0] = 100.0
        for turn in range(1, 3):
            x.fill_(turn)
            graph.replay()
            assert results[0][:2].tolist() == [3.0 * turn] * 2
        assert results[0][2:].tolist() == [3.0, 3.0]
