"""Fixtures for the engine's tests: one thread for arithmetic, and engines that must leave nothing behind.

On matrices of 32 columns a second thread only waits for the first: with it the tests cost several times their work.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext

import pytest
import torch

from legato.engine.engine import Engine
from tests.engine.clients import MakeEngine, tiny_engine
from tests.fake_cuda import fake_cuda


@pytest.fixture(scope="package", autouse=True)
def one_thread() -> Iterator[None]:
    """Set for these tests, and taken back."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


Cuda = Callable[[], AbstractContextManager[None]]


@pytest.fixture(params=["in name", pytest.param("real", marks=pytest.mark.cuda)])
def cuda(request: pytest.FixtureRequest) -> Cuda:
    """A block in which there is a device: one in name alone, and once more a real one where there is one."""
    devices: dict[str, Cuda] = {"in name": fake_cuda, "real": nullcontext}
    return devices[request.param]


@pytest.fixture
def make_engine() -> Iterator[MakeEngine]:
    """Makes engines; all must have given everything back and left no thread when the test is over."""
    engines: list[Engine] = []

    def make(**options: bool) -> Engine:
        engines.append(tiny_engine(**options))
        return engines[-1]

    yield make
    for engine in engines:
        engine.close()
        assert engine.kv_pool.balanced
        assert engine.codec_pool.balanced
        assert engine.runner.seated == 0
        assert engine.stats().streams_open == 0
    assert not [thread for thread in threading.enumerate() if thread.name == "legato-engine"]
