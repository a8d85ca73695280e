"""Threads of torch: worker threads are released, and started again by the next computation; or not used at all."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from legato.kernels.threads import torch_openmp

COUNT = """
import json, os, time, torch
from legato.kernels.threads import num_threads, release_worker_threads, single_torch_thread
torch.set_num_threads(3)
threads = lambda: len(os.listdir("/proc/self/task"))
compute = lambda: x.sin().sum() + (x @ x).sum() + x.index_select(0, torch.arange(499)).cos().sum()
counts = [threads()]
with single_torch_thread():
    x = torch.arange(250_000.0).view(500, 500)
"""
RELEASE = (
    COUNT
    + """
first = compute()
counts.append(threads())
release_worker_threads()
give_up = time.monotonic() + 20
while threads() > counts[0] and time.monotonic() < give_up:
    time.sleep(0.01)  # a thread that has ended is listed a moment longer
counts.append(threads())
again = compute()
counts.append(threads())
print(json.dumps([counts, bool(first == again)]))
"""
)
SINGLE = (
    COUNT
    + """
kernels = [num_threads()]
with single_torch_thread():
    compute()
    counts += [threads(), torch.get_num_threads()]
    kernels.append(num_threads())
    with single_torch_thread():
        kernels.append(num_threads())
counts += [torch.get_num_threads()]
compute()
counts += [threads()]
print(json.dumps([counts, kernels]))
"""
)
needs_openmp = pytest.mark.skipif(not torch_openmp(), reason="torch brought no GNU OpenMP")


def run(program: str) -> tuple[list[int], object]:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    counts, result = json.loads(done.stdout)
    return counts, result


@needs_openmp
def test_worker_threads_end_and_start_again() -> None:
    counts, equal = run(RELEASE)
    before, computing, released, again = counts
    assert computing == before + 2
    assert released == before
    assert again == before + 2
    assert equal is True


@needs_openmp
def test_single_torch_thread_starts_no_threads_and_leaves_the_kernels_theirs() -> None:
    counts, kernels = run(SINGLE)
    before, inside, torch_threads, restored, after = counts
    assert inside == before
    assert torch_threads == 1
    assert restored == 3
    assert after == before + 2
    assert isinstance(kernels, list)
    assert len(kernels) == 3
    assert len(set(kernels)) == 1
