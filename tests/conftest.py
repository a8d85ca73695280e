"""Fixtures for all tests: `tiny_checkpoint(kind)` returns the folder of a checkpoint with random weights.

Each kind is written once per session, on first use, from a fixed seed; tests must not write into it. Tests marked
`cuda` are skipped on machines without a CUDA device, and the report says how many.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from legato.weights.random_checkpoint import write_checkpoint

torch.set_num_threads(1)
"""With tiny tensors, two threads are slower than one, and much slower on a busy machine."""

TinyCheckpoint = Callable[[str], Path]


NO_CUDA = "no CUDA device"


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip tests marked `cuda` if there is no CUDA device."""
    if item.get_closest_marker("cuda") and not torch.cuda.is_available():
        pytest.skip(NO_CUDA)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Report the number of skipped CUDA tests."""
    skipped = sum(NO_CUDA in str(report.longrepr) for report in terminalreporter.stats.get("skipped", []))
    if skipped:
        terminalreporter.write_line(f"{NO_CUDA}, so {skipped} CUDA tests were skipped", yellow=True, bold=True)


@pytest.fixture(scope="session")
def tiny_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> TinyCheckpoint:
    """`tiny_checkpoint("tiny-base")` and other tiny kinds (`weights.random_checkpoint.CHECKPOINT_KINDS`). Read-only."""
    root = tmp_path_factory.mktemp("checkpoints")

    def folder(kind: str) -> Path:
        path = root / kind
        if not path.exists():
            write_checkpoint(kind, path)
        return path

    return folder
