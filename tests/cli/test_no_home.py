"""Commands for a user without a home folder and without an entry in the user database, as in many containers. S17."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import soundfile

from legato.cli.serve_options import ServeOptions
from legato.config.environment import default_voices_folder, native_folder
from tests.conftest import TinyCheckpoint

_RUN = """
import pwd, sys
def unknown(uid):
    raise KeyError(f"getpwuid(): uid not found: {uid}")
pwd.getpwuid = unknown
from legato.cli.main import main
sys.exit(main(sys.argv[1:]))
"""


def environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in ("HOME",) and not name.startswith("XDG_")}


def test_say_works_without_a_home(tiny_checkpoint: TinyCheckpoint, tmp_path: Path) -> None:
    out = tmp_path / "out.wav"
    command = ["say", "Hello.", "-m", str(tiny_checkpoint("tiny-embedded")), "--threads", "1", "-o", str(out)]
    run = subprocess.run(
        [sys.executable, "-c", _RUN, *command], env=environment(), capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    assert "unexpected" not in run.stderr
    assert soundfile.info(out).frames > 0


def test_folders_without_a_home(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    for name in ("XDG_CACHE_HOME", "XDG_DATA_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "home", no_home)
    assert default_voices_folder() is None
    with pytest.raises(OSError, match="XDG_CACHE_HOME"):
        native_folder()
    monkeypatch.setenv("XDG_DATA_HOME", "/data")
    monkeypatch.setenv("XDG_CACHE_HOME", "/cache")
    assert default_voices_folder() == Path("/data/legato/voices")
    assert native_folder() == Path("/cache/legato/native")


def test_server_without_a_home_keeps_no_voices(monkeypatch: pytest.MonkeyPatch) -> None:
    from legato.cli.serve import serve

    monkeypatch.setattr("legato.cli.serve_options.default_voices_folder", lambda: None)
    values = serve.make_context("serve", []).params
    options = ServeOptions(**{name: values[name] for name in ServeOptions.__dataclass_fields__})
    assert options.config("embedded").voices_folder is None
