"""Keeps the code base's old private dialect out: a list of banned phrases, and the files that still contain some.

`REMAINING` may only shrink: a file that is clean must be removed from it, and a new file cannot be added. To print the
current list, run `python -m tests.test_dialect`.
"""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SUFFIXES = {".py", ".c", ".h", ".js", ".html", ".css"}
BANNED: dict[str, str] = {
    r"\bin (?:any )?company\b": "in a batch, whatever the batch composition",
    r"\bwhoever\b": "the caller, the client",
    r"\bowns nothing\b": "holds no state",
    r"\bknows (?:no|nothing|neither)\b": "independent of",
    r"\blet go\b|let_\w*_go\b": "release",
    r"\baloud\b": "explicitly",
    r"\bby what (?:it|they)\b": "backend",
    r"\bruns? dry\b": "underrun",
    r"\bstands? still\b": "underrun, stall",
    r"\bhaste\b|HURRY": "urgency, deadline",
    r"\bmachinery\b": "context",
    r"\broster\b": "registry",
    r"\bso many\b": "this many, a number",
    r"\bto the bit\b": "bit-identical",
    r"\bmatrix tiles\b": "AMX",
    r"\bthereof\b|\bfor ever\b": "of it, forever",
    r"\btold\b": "reported, passed, configured",
    r'"""What\b': "a noun phrase or an imperative",
    r"\bSetDemand\b": "SetFlowControl",
}
"""Regular expression (case-insensitive) -> what to write instead."""

EXEMPT = ("tests/test_dialect.py", "docs/glossary.md")

REMAINING: dict[str, str] = {}
"""Folder -> files of it that still contain a banned phrase."""


def searched_files() -> list[str]:
    """All sources, tests and documents, except this file and the glossary, which lists replaced words."""
    files = [path for folder in ("legato", "tests") for path in (ROOT / folder).rglob("*") if path.suffix in SUFFIXES]
    files += [*(ROOT / "docs").glob("*.md"), ROOT / "README.md"]
    names = [path.relative_to(ROOT).as_posix() for path in files]
    return sorted(name for name in names if "/assets/" not in name and name not in EXEMPT)


def phrases(text: str) -> list[str]:
    """The banned phrases in `text`, each with its replacement."""
    found = []
    for pattern, replacement in BANNED.items():
        found += [
            f"line {text.count(chr(10), 0, match.start()) + 1}: {match[0]!r}, write: {replacement}"
            for match in re.finditer(pattern, text, re.IGNORECASE)
        ]
    return found


def remaining() -> set[str]:
    return {f"{folder}/{name}".removeprefix("./") for folder, names in REMAINING.items() for name in names.split()}


def offending() -> dict[str, list[str]]:
    found = {name: phrases((ROOT / name).read_text(encoding="utf-8")) for name in searched_files()}
    return {name: lines for name, lines in found.items() if lines}


def test_no_new_file_uses_the_dialect() -> None:
    new = {name: lines for name, lines in offending().items() if name not in remaining()}
    assert not new, "\n".join(f"{name}: {line}" for name, lines in new.items() for line in lines)


def test_clean_files_are_removed_from_the_list() -> None:
    clean = sorted(remaining() - set(offending()))
    assert not clean, f"remove from REMAINING: {', '.join(clean)}"


@pytest.mark.parametrize(
    "text",
    [
        "the same in company",
        "in any company",
        "Whoever leaves",
        "Owns nothing.",
        "It knows no model",
        "threads are let go",
        "let_team_go()",
        "say it aloud",
        "by what it computes",
        "a buffer runs dry",
        "Haste.EASY",
        "HURRY_S = 1",
        "the machinery of",
        "roster.py",
        "so many frames",
        "equal to the bit",
        "it is told why",
        '"""What a model needs."""',
    ],
)
def test_control_banned_phrase_is_found(text: str) -> None:
    assert phrases(text)


@pytest.mark.parametrize(
    "text", ["the bits of a byte", "an untold number", "letting go_on", "a company name", "dry run"]
)
def test_control_other_words_pass(text: str) -> None:
    assert not phrases(text)


def main() -> None:
    """Print the current value of `REMAINING`."""
    folders: dict[str, list[str]] = defaultdict(list)
    for name in offending():
        folder, _, file = name.rpartition("/")
        folders[folder or "."].append(file)
    for folder, files in folders.items():
        print(f'    "{folder}": """')
        line = "       "
        for file in files:
            if len(line) + len(file) > 110:
                print(line)
                line = "       "
            line += f" {file}"
        print(f'{line}\n    """,')


if __name__ == "__main__":
    main()
