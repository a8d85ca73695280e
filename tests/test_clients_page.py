"""The table of docs/clients.md names the client versions that `make test-clients` installs."""

from __future__ import annotations

import json
import re
from pathlib import Path

from clients.run import KNOWN_FAILURES, PROGRAMS, Check, table, unexpected

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "clients.md").read_text(encoding="utf-8")


def test_versions_are_the_pinned_ones() -> None:
    pinned = dict(
        line.split("==") for line in (ROOT / "clients" / "constraints.txt").read_text().splitlines() if "==" in line
    )
    named = re.findall(r"^\| .*? \| ([A-Za-z-]+) (\d[\d.]+) \|", PAGE, flags=re.MULTILINE)
    npm = json.loads((ROOT / "clients" / "npm" / "package.json").read_text())["dependencies"]
    versions = {name.lower(): version for name, version in pinned.items()}
    assert len(named) >= 9
    for name, version in named:
        assert version in (versions.get(name.lower()), npm.get(name)), (name, version)


def test_every_required_client_is_on_the_page() -> None:
    lines = (ROOT / "clients" / "requirements.txt").read_text().splitlines()
    required = [re.split(r"[\[ ]", line)[0] for line in lines if line and not line.startswith("#")]
    for name in set(required) - {"aiohttp", "livekit-plugins-baseten", "livekit-plugins-openai"}:
        assert name in PAGE, name
    assert all((ROOT / "clients" / "programs" / f"{name}.py").is_file() for name in PROGRAMS)


def test_only_unknown_failures_and_fixed_known_ones_are_reported() -> None:
    (package, name), _ = next(iter(KNOWN_FAILURES.items()))
    known, fixed = Check(package, "1", name, "broken"), Check(package, "1", name, None)
    new, passed = Check("openai", "1", "files", "a | b"), Check("openai", "1", "stream", None)
    assert unexpected([known, passed]) == []
    assert len(unexpected([fixed])) == 1
    assert len(unexpected([new, passed])) == 1
    assert "a \\| b" in table([new])
