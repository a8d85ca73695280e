"""The Dockerfile, where no engine can build it: linted, and held to what it says about itself."""

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
    """Name and rest of each instruction, continued lines joined."""
    lines = "".join(line for line in text.splitlines(keepends=True) if not line.startswith("#"))
    joined = lines.replace("\\\n", " ").splitlines()
    return [(line.split()[0], line.split(maxsplit=1)[1]) for line in joined if line.strip()]


def lint(text: str) -> str:
    """What hadolint finds."""
    program = Path(sys.executable).with_name("hadolint")
    run = subprocess.run([program, "--no-color", "-"], input=text, capture_output=True, text=True, check=False)
    return run.stdout + run.stderr


def test_the_linter_finds_nothing() -> None:
    assert lint(TEXT) == ""


def test_control_the_linter_finds_a_fault() -> None:
    assert "DL3002" in lint(TEXT + "USER root\n")


def test_it_copies_what_is_there_and_installs_no_development_part() -> None:
    for name, rest in instructions(TEXT):
        if name == "COPY":
            *sources, _ = rest.split()
            assert all((ROOT / source).exists() for source in sources), rest
    assert "'.[server]'" in TEXT
    assert "dev" not in re.findall(r"\.\[([\w,]+)\]", TEXT)[0]
    packaged = {"pyproject.toml", "README.md", "LICENSE", "NOTICE", "legato"}
    copied = {word for name, rest in instructions(TEXT) if name == "COPY" for word in rest.split()[:-1]}
    assert packaged <= copied, "pip needs these to build the package"


def test_it_runs_as_a_user_who_may_write_only_where_the_volume_is() -> None:
    found = instructions(TEXT)
    names = [name for name, _ in found]
    user = next(rest for name, rest in found if name == "USER")
    assert user.split(":")[0].isdecimal(), "a number is known to every host"
    assert int(user.split(":")[0]) > 0
    assert f"--uid {user.split(':')[0]}" in TEXT
    assert all(names.index("USER") > at for at, name in enumerate(names) if name in ("RUN", "COPY"))
    (volume,) = [rest for name, rest in found if name == "VOLUME"]
    places = re.findall(r"\b(?:HF_HOME|XDG_DATA_HOME)=(\S+)", TEXT)
    assert len(places) == 2
    assert all(place.startswith(volume) for place in places), "checkpoints and voices outlive the container"


@pytest.mark.parametrize("name", ["ENTRYPOINT", "HEALTHCHECK"])
def test_its_commands_are_ours(name: str) -> None:
    (rest,) = [rest for each, rest in instructions(TEXT) if each == name]
    words = json.loads(rest[rest.index("[") :])
    if name == "ENTRYPOINT":
        assert words[:2] == ["legato", "serve"]
        port = serve.make_context("serve", words[2:]).params["port"]
        assert f"EXPOSE {port}" in TEXT
    else:
        assert "/ready" in words[-1]
        compile(words[-1], "healthcheck", "exec")
