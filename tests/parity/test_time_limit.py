"""The time limit ends a hung parity run: with all stacks on Legato's side, with an error on the official side."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from parity.run import run_oracle


def test_hung_run_prints_stacks_and_fails() -> None:
    hang = "import time; from parity.run import time_limit\nwith time_limit(0.5): time.sleep(60)"
    done = subprocess.run([sys.executable, "-c", hang], capture_output=True, text=True, timeout=50, check=False)
    assert done.returncode == 1
    assert "Timeout" in done.stderr
    assert "most recent call first" in done.stderr
    in_time = "from parity.run import time_limit\nwith time_limit(60): pass\nprint('done')"
    done = subprocess.run([sys.executable, "-c", in_time], capture_output=True, text=True, timeout=50, check=False)
    assert (done.returncode, done.stdout) == (0, "done\n")


def test_hung_official_side_is_killed(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nexec sleep 60\n")
    python.chmod(0o755)
    started_s = time.monotonic()
    with pytest.raises(subprocess.TimeoutExpired):
        run_oracle(python, tmp_path, tmp_path, ("tiny",), limit_s=0.5)
    assert time.monotonic() - started_s < 30
