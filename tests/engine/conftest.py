"""Fixtures for the engine's tests: one compute thread, a (fake) CUDA device, and engines that are checked for leaks.

With matrices of 32 columns, a second compute thread makes the tests several times slower.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch

from legato.engine.engine import Engine
from tests.engine.clients import MakeEngine, tiny_engine
from tests.fake_cuda import fake_cuda


@pytest.fixture(scope="package", autouse=True)
def one_thread() -> Iterator[None]:
    """One compute thread for these tests; restored afterwards."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


Cuda = Callable[[], AbstractContextManager[None]]


@pytest.fixture(params=["fake", pytest.param("real", marks=pytest.mark.cuda)])
def cuda(request: pytest.FixtureRequest) -> Cuda:
    """A context with a CUDA device: a fake one, and a real one if there is one."""
    devices: dict[str, Cuda] = {"fake": fake_cuda, "real": nullcontext}
    return devices[request.param]


@pytest.fixture
def make_engine() -> Iterator[MakeEngine]:
    """Creates engines. After the test all must have released their slots and stopped their thread."""
    engines: list[Engine] = []

    def make(**options: Any) -> Engine:
        engines.append(tiny_engine(**options))
        return engines[-1]

    yield make
    for engine in engines:
        engine.close()
        assert engine.kv_pool.all_free
        assert engine.codec_pool.all_free
        assert engine.runner.num_sequences == 0
        assert engine.stats().streams_open == 0
    assert not [thread for thread in threading.enumerate() if thread.name == "legato-engine"]
