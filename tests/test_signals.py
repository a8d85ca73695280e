"""Tests in the background of a shell script, where SIGINT is ignored, can still interrupt the processes they start."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

CHILD = "import signal; print(signal.getsignal(signal.SIGINT) is signal.SIG_IGN)"
RUN = "import subprocess, sys; sys.exit(subprocess.run([sys.executable, '-c', sys.argv[1]]).returncode)"


@pytest.mark.skipif(sys.platform == "win32", reason="needs a POSIX shell")
@pytest.mark.parametrize(("setup", "ignored"), [("import tests.conftest; ", "False"), ("", "True")])
def test_child_processes_start_with_the_default_action(setup: str, ignored: str) -> None:
    """The second case is the control: without conftest, the child inherits the ignored signal."""
    command = ["sh", "-c", 'trap "" INT; exec "$@"', "sh", sys.executable, "-c", setup + RUN, CHILD]
    run = subprocess.run(command, cwd=Path(__file__).parents[1], capture_output=True, text=True, check=True, timeout=60)
    assert run.stdout.strip() == ignored
