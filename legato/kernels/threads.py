"""Threads of the kernels: their number, and the release of torch's own.

The kernels have one thread pool per process (`thread_pool.h`); engines of one process share it. An engine that finds it
in use computes alone for the length of that call, so several engines do not multiply the number of threads. The number
of threads may change between any two calls: it changes no result.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator
from contextlib import contextmanager
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


class _OfThread(threading.local):
    """The number of threads of the kernels that the calling thread uses inside `single_torch_thread`."""

    threads: int | None = None


_setting = _Setting()
_of_thread = _OfThread()
_usable_cores = lru_cache(default_threads)


def set_num_threads(threads: int | None) -> None:
    """Set the number of threads of the kernels for this process; None restores the default (see `num_threads`)."""
    _setting.threads = threads


def num_threads() -> int:
    """Threads of a kernel call, the calling thread included.

    Without `set_num_threads` it is torch's number of threads, but at most the usable cores: torch counts neither CPU
    quotas nor hyper-threads.
    """
    return _setting.threads or _of_thread.threads or min(torch.get_num_threads(), _usable_cores())


def torch_openmp() -> list[Path]:
    """The GNU OpenMP library of the torch package; empty where torch brings another one."""
    return sorted((Path(torch.__file__).parent / "lib").glob("libgomp*.so*"))[:1]


@contextmanager
def single_torch_thread() -> Iterator[None]:
    """Run torch operations of the calling thread on this thread only. The kernels keep their number of threads.

    Between kernels, torch does small operations: copies of states, sines of positions. It would use its OpenMP threads
    for some of them, and these spin for 25 ms after each on a core that the kernels need; beside another process each
    such operation waits for a time slice. Other threads of the process are not affected. Does nothing where torch has
    no GNU OpenMP.
    """
    openmp, mkl = _torch_libraries()
    if openmp is None:
        yield
        return
    kernel_threads, torch_threads, outer = num_threads(), torch.get_num_threads(), _of_thread.threads
    _of_thread.threads = kernel_threads
    openmp.omp_set_num_threads(1)
    mkl_threads = None if mkl is None else mkl.MKL_Set_Num_Threads_Local(1)
    try:
        yield
    finally:
        openmp.omp_set_num_threads(torch_threads)
        if mkl is not None:
            mkl.MKL_Set_Num_Threads_Local(mkl_threads)
        _of_thread.threads = outer


@lru_cache
def _torch_libraries() -> tuple[ctypes.CDLL | None, ctypes.CDLL | None]:
    """torch's OpenMP library, and its MKL, which has a number of threads of its own."""
    openmp = next((ctypes.CDLL(str(path)) for path in torch_openmp()), None)
    torch_cpu = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    mkl = ctypes.CDLL(str(torch_cpu)) if torch_cpu.is_file() else None
    return openmp, mkl if hasattr(mkl, "MKL_Set_Num_Threads_Local") else None


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
