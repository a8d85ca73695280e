"""Documentation checks: Python examples run, command lines parse, links resolve, and both READMEs match.

Python examples run with the embedded voice, each in its own process and folder. Examples that need a server run in
`tests/server/test_examples.py`.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest

from legato.cli.main import legato

ROOT = Path(__file__).resolve().parent.parent
GUIDES = ("docs/quickstart.md", *(f"docs/guides/{name}.md" for name in ("cloning", "language-models", "voice-agents")))
DOCUMENTS = (
    *("README.md", "README.zh.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "docs/exactness.md", "docs/states.md"),
    *GUIDES,
)
SERVER = "127.0.0.1:8000"
PAGES = (
    *DOCUMENTS,
    *(f"docs/{name}.md" for name in ("index", "dependencies", "latency", "streaming-convolution")),
    "docs/guides/troubleshooting.md",
)


def blocks(document: str, language: str) -> list[str]:
    """Code blocks of one language, in order."""
    text = (ROOT / document).read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)


def command_lines(document: str) -> list[str]:
    """Each `legato ...` command in shell blocks, without pipes and redirections."""
    lines = [line for block in blocks(document, "sh") for line in block.splitlines()]
    parts = [part.split(" #")[0].split(" > ")[0].strip() for line in lines for part in line.split(" | ")]
    return [part for part in parts if part.startswith("legato ")]


EXAMPLES = [
    (document, code)
    for document in ("README.md", "docs/streaming-convolution.md", *GUIDES)
    for code in blocks(document, "python")
    if SERVER not in code
]
LINES = sorted({line for document in DOCUMENTS for line in command_lines(document)})


def parse(line: str) -> click.Context:
    """Parse a command line without running it; raises `click.UsageError` if it is invalid."""
    words = shlex.split(line)[1:]
    command = legato.get_command(legato.make_context("legato", [*words]), words[0])
    if command is None:
        raise click.UsageError(f"no command {words[0]}")
    return command.make_context(words[0], words[1:])


@pytest.mark.parametrize(("document", "code"), EXAMPLES)
def test_python_example_runs(document: str, code: str, tmp_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert run.returncode == 0, f"{document}\n{run.stderr}"
    assert run.stderr == ""


@pytest.mark.parametrize("line", LINES)
def test_command_line_parses(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "me.wav").touch()
    parse(line)


@pytest.mark.parametrize("line", ["legato say --no-such-option", "legato no-such-command", "legato say --seed seven x"])
def test_invalid_command_line_is_rejected(line: str) -> None:
    with pytest.raises(click.UsageError):
        parse(line)


def test_documents_contain_enough_examples() -> None:
    assert len(EXAMPLES) >= 3
    assert len(LINES) >= 8
    assert any("--clone" in line for line in LINES)


def test_both_readmes_match() -> None:
    for language in ("sh", "python"):
        mine, theirs = blocks("README.md", language), blocks("README.zh.md", language)
        uncommented = [[re.sub(r" +#.*$", "", block, flags=re.MULTILINE) for block in each] for each in (mine, theirs)]
        assert uncommented[0] == uncommented[1]
    texts = [(ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "README.zh.md")]
    headings, links = ([re.findall(form, text, re.MULTILINE) for text in texts] for form in (r"^#+ ", r"\]\(([^)]+)\)"))
    assert headings[0] == headings[1]
    assert set(links[0]) - {"README.zh.md"} == set(links[1]) - {"README.md"}


@pytest.mark.parametrize("document", PAGES)
def test_links_resolve(document: str) -> None:
    text = (ROOT / document).read_text(encoding="utf-8")
    links = [link for link in re.findall(r"\]\(([^)#]+)[^)]*\)", text) if "://" not in link]
    missing = [link for link in links if not ((ROOT / document).parent / link).exists()]
    assert not missing


@pytest.mark.parametrize("document", PAGES)
def test_named_files_exist(document: str) -> None:
    """`legato/...`, `tests/...`, and the short `engine/core.py` of ARCHITECTURE exist."""
    text = re.sub(r"```.*?```", "", (ROOT / document).read_text(encoding="utf-8"), flags=re.DOTALL)
    named = re.findall(r"`((?:[a-z_]+/)+[a-z_]*(?:\.py)?|[a-z_]+/[a-z_/]+\.py)`", text)
    missing = [name for name in named if not ((ROOT / name).exists() or (ROOT / "legato" / name).exists())]
    assert not [name for name in missing if name not in ("checkpoint/", "bench/", "server/")]


def test_named_tests_exist() -> None:
    named = re.findall(r"`([a-z_/]+\.py)::(\w+)`", (ROOT / "docs" / "faults.md").read_text(encoding="utf-8"))
    assert len(named) >= 30
    missing = [f"{path}::{test}" for path, test in named if f"def {test}(" not in (ROOT / "tests" / path).read_text()]
    assert not missing


def test_make_targets_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):", makefile, flags=re.MULTILINE))
    for document in DOCUMENTS:
        text = (ROOT / document).read_text(encoding="utf-8")
        used = re.findall(r"(?:^|`)make ([a-z][a-z -]*)", text, flags=re.MULTILINE)
        assert set(" ".join(used).split()) <= targets
    listed = set(re.findall(r"'  make ([a-z-]+)", makefile)) | {"clean-all"}
    assert listed <= targets
