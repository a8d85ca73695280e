"""Threads of the kernels: their number, and the release of torch's own.

The kernels have one thread pool per process (`thread_pool.h`); engines of one process share it. An engine that finds it
in use computes alone for the length of that call, so several engines do not multiply the number of threads. The number
of threads may change between any two calls: it changes no result.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import torch

from legato.config.cpus import default_threads

_OMP_PAUSE_HARD = 2


@dataclass(slots=True)
class _Setting:
    """The explicit number of threads, if there is one. Like torch's number of threads it belongs to the process."""

    threads: int | None = None


_setting = _Setting()
_usable_cores = lru_cache(default_threads)


def set_num_threads(threads: int | None) -> None:
    """Set the number of threads of the kernels for this process; None restores the default (see `num_threads`)."""
    _setting.threads = threads


def num_threads() -> int:
    """Threads of a kernel call, the calling thread included.

    Without `set_num_threads` it is torch's number of threads, but at most the usable cores: torch counts neither CPU
    quotas nor hyper-threads.
    """
    return _setting.threads or min(torch.get_num_threads(), _usable_cores())


def torch_openmp() -> list[Path]:
    """The GNU OpenMP library of the torch package; empty where torch brings another one."""
    return sorted((Path(torch.__file__).parent / "lib").glob("libgomp*.so*"))[:1]


def release_worker_threads() -> None:
    """End torch's OpenMP worker threads of the calling thread. Must not be called from inside a parallel region.

    GNU OpenMP keeps a thread pool for every thread that has run a parallel region, and its workers spin for
    milliseconds after each. They would take cores from the kernels. So a thread that computes with torch before the
    engine starts, or beside it, releases its pool; its next parallel region creates a new one.
    """
    for path in torch_openmp():
        pause = getattr(ctypes.CDLL(str(path)), "omp_pause_resource_all", None)
        if pause is not None:
            pause(_OMP_PAUSE_HARD)
