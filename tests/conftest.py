"""Fixtures for all tests: `tiny_checkpoint(kind)` returns the folder of a checkpoint with random weights.

Each kind is written once per session, on first use, from a fixed seed; tests must not write into it. Tests marked
`cuda` are skipped on machines without a CUDA device, and the report says how many.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from legato.weights.random_checkpoint import write_checkpoint

torch.set_num_threads(1)
"""With tiny tensors, two threads are slower than one, and much slower on a busy machine."""

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell script ignores SIGINT in background commands. Child processes inherit that and could not be interrupted.
    signal.signal(signal.SIGINT, signal.default_int_handler)

TinyCheckpoint = Callable[[str], Path]


NO_CUDA = "no CUDA device"


SMOKE = (
    *("test_public_api.py", "test_voice.py", "cli/test_say.py", "engine/test_scheduler.py", "engine/test_slots.py"),
    *("models/codec/test_decoder.py", "session", "server/openai/test_formats.py", "text/test_segmenter.py"),
)
"""Files and folders of `-m smoke`: half a minute over all layers, for use while editing."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the smoke tests."""
    tests = Path(__file__).parent
    paths = [tests / name for name in SMOKE]
    missing = [str(path) for path in paths if not path.exists()]
    if missing:
        raise pytest.UsageError(f"SMOKE in tests/conftest.py names files that do not exist: {', '.join(missing)}")
    for item in items:
        if any(path == item.path or path in item.path.parents for path in paths):
            item.add_marker(pytest.mark.smoke)


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
