"""Release of OpenMP worker threads.

GNU OpenMP keeps a thread pool for every thread that has run a parallel region. While all pools together have more
threads than the machine has cores, a waiting thread sleeps at once and does not spin first. A step has hundreds of
parallel regions and then takes a quarter longer. So a thread that computes before the engine starts, or beside it,
releases its pool; its next parallel region creates a new one.
"""

from __future__ import annotations

import ctypes

from legato.kernels.build import torch_openmp

_OMP_PAUSE_HARD = 2


def release_worker_threads() -> None:
    """End the OpenMP worker threads of the calling thread. Must not be called from inside a parallel region."""
    for path in torch_openmp():
        pause = getattr(ctypes.CDLL(str(path)), "omp_pause_resource_all", None)
        if pause is not None:
            pause(_OMP_PAUSE_HARD)
