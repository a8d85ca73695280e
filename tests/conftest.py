"""Fixtures for all tests: `tiny_checkpoint(kind)` is the folder of a random-weight checkpoint.

Each kind is written once a session, when it is first asked for; nobody may write into it. Tests marked `cuda` are
skipped where there is no such device, and the end of the report says how many.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from legato.models.synth import write_checkpoint

torch.set_num_threads(1)
"""Tiny tensors are slower in two threads than in one, and much slower where the cores are busy."""

TinyCheckpoint = Callable[[str], Path]


NO_CUDA = "no CUDA device"


def pytest_runtest_setup(item: pytest.Item) -> None:
    """What is marked `cuda` needs one."""
    if item.get_closest_marker("cuda") and not torch.cuda.is_available():
        pytest.skip(NO_CUDA)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say aloud what was left out."""
    skipped = sum(NO_CUDA in str(report.longrepr) for report in terminalreporter.stats.get("skipped", []))
    if skipped:
        terminalreporter.write_line(f"{NO_CUDA}, so {skipped} tests of one were skipped", yellow=True, bold=True)


@pytest.fixture(scope="session")
def tiny_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> TinyCheckpoint:
    """`tiny_checkpoint("tiny-base")` and the other tiny kinds of `legato.models.synth.LIKES`. Do not write into it."""
    root = tmp_path_factory.mktemp("checkpoints")

    def folder(kind: str) -> Path:
        path = root / kind
        if not path.exists():
            write_checkpoint(kind, path)
        return path

    return folder
