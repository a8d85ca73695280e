"""Checks the Dockerfile without building it: hadolint, copied files, user, volume, and commands."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from legato.cli.serve import serve

ROOT = Path(__file__).resolve().parent.parent
TEXT = (ROOT / "Dockerfile").read_text(encoding="utf-8")


def instructions(text: str) -> list[tuple[str, str]]:
    """Name and arguments of each instruction; continuation lines are joined."""
    lines = "".join(line for line in text.splitlines(keepends=True) if not line.startswith("#"))
    joined = lines.replace("\\\n", " ").splitlines()
    return [(line.split()[0], line.split(maxsplit=1)[1]) for line in joined if line.strip()]


def lint(text: str) -> str:
    """The output of hadolint."""
    program = Path(sys.executable).with_name("hadolint")
    run = subprocess.run([program, "--no-color", "-"], input=text, capture_output=True, text=True, check=False)
    return run.stdout + run.stderr


def test_linter_reports_nothing() -> None:
    assert lint(TEXT) == ""


def test_control_linter_reports_a_fault() -> None:
    assert "DL3002" in lint(TEXT + "USER root\n")


def test_copied_files_exist_and_no_dev_extra_is_installed() -> None:
    for name, rest in instructions(TEXT):
        if name == "COPY":
            *sources, _ = rest.split()
            assert all((ROOT / source).exists() for source in sources), rest
    assert "ARG EXTRAS=server\n" in TEXT
    assert '".[$EXTRAS]"' in TEXT
    assert "dev" not in re.findall(r"ARG EXTRAS=(.*)", TEXT)[0]
    packaged = {"pyproject.toml", "README.md", "LICENSE", "NOTICE", "legato"}
    copied = {word for name, rest in instructions(TEXT) if name == "COPY" for word in rest.split()[:-1]}
    assert packaged <= copied, "pip requires these to build the package"


def test_runs_as_unprivileged_user_that_writes_only_to_the_volume() -> None:
    found = instructions(TEXT)
    names = [name for name, _ in found]
    user = next(rest for name, rest in found if name == "USER")
    assert user.split(":")[0].isdecimal(), "a numeric id is valid on every host"
    assert int(user.split(":")[0]) > 0
    assert f"--uid {user.split(':')[0]}" in TEXT
    assert all(names.index("USER") > index for index, name in enumerate(names) if name in ("RUN", "COPY"))
    (volume,) = [rest for name, rest in found if name == "VOLUME"]
    data_folders = re.findall(r"\b(?:HF_HOME|XDG_DATA_HOME)=(\S+)", TEXT)
    assert len(data_folders) == 2
    assert all(folder.startswith(volume) for folder in data_folders), "checkpoints and voices persist in the volume"


@pytest.mark.parametrize("name", ["ENTRYPOINT", "HEALTHCHECK"])
def test_commands_are_valid(name: str) -> None:
    (rest,) = [rest for each, rest in instructions(TEXT) if each == name]
    words = json.loads(rest[rest.index("[") :])
    if name == "ENTRYPOINT":
        assert words[:2] == ["legato", "serve"]
        port = serve.make_context("serve", words[2:]).params["port"]
        assert f"EXPOSE {port}" in TEXT
    else:
        assert "/ready" in words[-1]
        compile(words[-1], "healthcheck", "exec")
