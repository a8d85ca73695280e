"""The records of the official package, and the checkpoints they were made on, written again from their seed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest
import torch

from parity.records import Record, read_record
from parity.run import FIXTURES
from parity.subject import Subject


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """As the records were made; and at these sizes threads only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def subject(tiny_checkpoint: Callable[[str], Path]) -> Callable[[str], Subject]:
    """Name of a kind -> its checkpoint, loaded by Legato."""
    return cache(lambda name: Subject.load(tiny_checkpoint(name)))


@pytest.fixture(scope="session")
def record() -> Callable[[str], Record]:
    """Name of a kind -> what the official package computed for it."""
    return cache(lambda name: read_record(FIXTURES, name))
