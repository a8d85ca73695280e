"""Fixtures: the records of the official package, and their checkpoints, written again from the seed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest
import torch

from parity.legato_side import ParityModel
from parity.records import Record, read_record
from parity.run import FIXTURES


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """The records were made with one thread; at these sizes more threads are slower."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def model(tiny_checkpoint: Callable[[str], Path]) -> Callable[[str], ParityModel]:
    """Name -> checkpoint loaded by Legato."""
    return cache(lambda name: ParityModel.load(tiny_checkpoint(name)))


@pytest.fixture(scope="session")
def record() -> Callable[[str], Record]:
    """Name -> record of the official package."""
    return cache(lambda name: read_record(FIXTURES, name))
