"""CASES R72: `--threads`, and the default thread count of commands."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from legato.cli.loading import set_threads
from legato.config.cpus import default_threads
from legato.kernels.threads import num_threads, set_num_threads


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
    threads, tf32 = torch.get_num_threads(), (cudnn.allow_tf32, matmul.allow_tf32)
    yield
    torch.set_num_threads(threads)
    set_num_threads(None)
    cudnn.allow_tf32, matmul.allow_tf32 = tf32


def test_set_threads_configures_torch_and_kernels_and_disables_tf32() -> None:
    cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
    cudnn.allow_tf32 = matmul.allow_tf32 = True
    assert set_threads(1) == torch.get_num_threads() == num_threads() == 1
    assert set_threads(None) == torch.get_num_threads() == num_threads() == default_threads() >= 1
    assert not cudnn.allow_tf32  # on CUDA, float32 stays float32
    assert not matmul.allow_tf32


def test_threads_option_wins_over_the_usable_cores() -> None:
    more = default_threads() + 3
    assert set_threads(more) == torch.get_num_threads() == num_threads() == more


def test_without_the_option_kernels_take_at_most_the_usable_cores() -> None:
    torch.set_num_threads(default_threads() + 3)  # torch counts hyper-threads, and no quota
    assert num_threads() == default_threads()
    torch.set_num_threads(1)  # a program that limits torch limits the kernels, too
    assert num_threads() == 1
