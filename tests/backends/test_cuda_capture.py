"""Captured functions give the results of direct calls for any number of rows; what cannot be captured is an error."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from legato.backends.cuda_capture import Captured, GraphRecorder, fitting, sizes
from legato.errors import StateError
from tests.engine.conftest import Cuda

AT = torch.device("cuda", 0)


@pytest.fixture(autouse=True)
def device(cuda: Cuda) -> Iterator[None]:
    with cuda(), torch.inference_mode():
        yield


def scaled(x: Tensor, factor: Tensor) -> tuple[Tensor, ...]:
    return (x * factor[:, None]).cumsum(1), factor + 1


def captured(rows: int = 4) -> Captured:
    idle = (torch.zeros(rows, 3, device=AT), torch.ones(rows, dtype=torch.int64, device=AT))
    return Captured(GraphRecorder(AT), "a test", scaled, idle)


def test_replay_equals_call_for_any_number_of_rows() -> None:
    chance, work = torch.Generator().manual_seed(1), captured()
    kept: list[tuple[tuple[Tensor, ...], list[Tensor]]] = []
    for rows in (4, 1, 3, 2, 4):
        x, factor = torch.randn(rows, 3, generator=chance), torch.randint(9, (rows,), generator=chance)
        on_device = rows % 2 == 0
        given = (x.to(AT), factor.to(AT)) if on_device else (x, factor)  # inputs on either device
        kept.append((scaled(x, factor), [each.cpu() for each in work(*given)]))
    for wanted, got in kept:
        assert all(one.equal(other) for one, other in zip(wanted, got, strict=True))


def test_padding_rows_are_idle_after_a_larger_call() -> None:
    """A call with fewer rows is padded with idle rows, not with rows of the previous call."""
    spare, pool = 4, torch.zeros(5, device=AT)

    def keep(slots: Tensor, values: Tensor) -> tuple[Tensor, ...]:
        pool[slots] = values
        return (values,)

    idle = (torch.full((4,), spare, device=AT), torch.zeros(4, device=AT))
    work = Captured(GraphRecorder(AT), "a test", keep, idle)
    work(torch.tensor([0, 1, 2, 3]), torch.tensor([1.0, 2.0, 3.0, 4.0]))
    pool.fill_(7.0)
    work(torch.tensor([1, 0]), torch.tensor([5.0, 6.0]))
    assert pool[:spare].tolist() == [6.0, 5.0, 7.0, 7.0]


def test_control_host_value_is_fixed_by_the_capture() -> None:
    gain = [2.0]
    work = Captured(GraphRecorder(AT), "a test", lambda x: (x * gain[0],), (torch.zeros(1, 1, device=AT),))
    gain[0] = 5.0
    assert work(torch.ones(1, 1))[0].tolist() == [[2.0]]


def test_inputs_that_differ_from_the_capture_are_refused() -> None:
    work = captured(2)
    rope = torch.ones(2, dtype=torch.int64)
    for x, scale in (
        (torch.ones(3, 3), torch.ones(3, dtype=torch.int64)),
        (torch.ones(2, 4), rope),
        (torch.ones(2, 3, dtype=torch.float64), rope),
        (torch.ones(2, 3), rope[:1]),
    ):
        with pytest.raises(StateError, match="was captured for"):
            work(x, scale)


@pytest.mark.parametrize(
    ("most", "least", "wanted"),
    [
        (1, 1, (1,)),
        (2, 1, (1, 2)),
        (9, 1, (1, 2, 4, 8, 9)),
        (8, 1, (1, 2, 4, 8)),
        (300, 128, (128, 256, 300)),
        (9, 128, (9,)),
    ],
)
def test_sizes_are_powers_of_two_and_the_maximum(most: int, least: int, wanted: tuple[int, ...]) -> None:
    assert sizes(most, least) == wanted
    assert fitting(wanted, 1) == wanted[0]
    assert fitting(wanted, most) == most
    with pytest.raises(StateError, match="is larger than"):
        fitting(wanted, most + 1)
