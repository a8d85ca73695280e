"""The threads that computed for this one: they can be let go. Owns nothing; knows no module.

GNU OpenMP keeps a team of threads for every thread that ever computed with several. While all teams together have more
threads than there are cores, a thread that waits for its team goes to sleep at once instead of watching for a moment,
and a step with hundreds of such moments takes a quarter longer. So whoever computed before an engine, or beside it,
lets its team go; the next computation makes a new one.
"""

from __future__ import annotations

import ctypes

from legato.models.native.library import torch_openmp

_HARD = 2


def let_team_go() -> None:
    """End the threads that wait for this thread's next computation. Not to be called from inside one."""
    for path in torch_openmp():
        pause = getattr(ctypes.CDLL(str(path)), "omp_pause_resource_all", None)
        if pause is not None:
            pause(_HARD)
