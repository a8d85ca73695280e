"""A parity run that hangs ends: on our side with every thread's stack, on the official side with an error."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from parity.run import run_oracle


def test_a_run_that_hangs_says_where_and_ends_with_an_error() -> None:
    hang = "import time; from parity.run import at_most\nwith at_most(0.5): time.sleep(60)"
    done = subprocess.run([sys.executable, "-c", hang], capture_output=True, text=True, timeout=50, check=False)
    assert done.returncode == 1
    assert "Timeout" in done.stderr
    assert "most recent call first" in done.stderr
    in_time = "from parity.run import at_most\nwith at_most(60): pass\nprint('done')"
    done = subprocess.run([sys.executable, "-c", in_time], capture_output=True, text=True, timeout=50, check=False)
    assert (done.returncode, done.stdout) == (0, "done\n")


def test_an_official_side_that_hangs_is_ended(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nexec sleep 60\n")
    python.chmod(0o755)
    began_s = time.monotonic()
    with pytest.raises(subprocess.TimeoutExpired):
        run_oracle(python, tmp_path, tmp_path, ("tiny",), limit_s=0.5)
    assert time.monotonic() - began_s < 30
