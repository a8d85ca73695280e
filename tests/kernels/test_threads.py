"""A thread's team is let go, and comes again when there is something to compute."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from legato.kernels.threads import torch_openmp

PROGRAM = """
import json, os, time, torch
from legato.kernels.threads import release_worker_threads
torch.set_num_threads(3)
threads = lambda: len(os.listdir("/proc/self/task"))
counts = [threads()]
x = torch.arange(250_000.0).view(500, 500)
first = (x.sin() @ x).sum()
counts.append(threads())
release_worker_threads()
give_up = time.monotonic() + 20
while threads() > counts[0] and time.monotonic() < give_up:
    time.sleep(0.01)  # a thread that has ended is listed a moment longer
counts.append(threads())
again = (x.sin() @ x).sum()
counts.append(threads())
print(json.dumps([counts, bool(first == again)]))
"""


@pytest.mark.skipif(not torch_openmp(), reason="torch brought no GNU OpenMP")
def test_threads_end_and_come_again() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    (before, computing, let_go, again), equal = json.loads(done.stdout)
    assert computing == before + 2
    assert let_go == before
    assert again == before + 2
    assert equal
