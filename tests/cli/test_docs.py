"""`docs/cli.md` lists every command, names only existing options, and states the current figures."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

import click

from legato.audio.reference import ReferenceLimits
from legato.cli.main import COMMANDS, legato
from legato.text import budget
from legato.text.segmenter import EMBEDDED_RULE, OFFICIAL_RULE

PAGE = (Path(__file__).parents[2] / "docs" / "cli.md").read_text(encoding="utf-8")


def options() -> set[str]:
    commands: list[click.Command] = [legato]
    modules = [name.replace("-", "_") for name in COMMANDS]
    commands += [getattr(import_module(f"legato.cli.{name}"), name) for name in modules]
    return {name for command in commands for parameter in command.params for name in parameter.opts} | {"--help"}


def test_page_lists_every_command_and_only_existing_options() -> None:
    assert all(f"| `{name}` |" in PAGE for name in COMMANDS)
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", PAGE))
    assert named
    assert named <= options()


def test_page_states_the_current_figures() -> None:
    one_line = " ".join(PAGE.split())
    characters = (
        f"{budget.BASE_FRAMES}, and for each character {budget.WIDE_FRAMES} (Chinese, Japanese, Korean), "
        f"{budget.DIGIT_FRAMES} (digit), {budget.CAPITAL_FRAMES} (capital), {budget.LETTER_FRAMES} (other letter), "
        f"{budget.SIGN_FRAMES} (sign), {budget.PAUSE_FRAMES} (mark that makes a pause)"
    )
    assert characters in one_line
    rule, limits = budget.WatchdogRule(), ReferenceLimits()
    assert f"{rule.silent_frames * 0.08:g} s below -54 dBFS" in one_line
    assert f"the same frames for {rule.repeat_frames * 0.08:g} s" in one_line
    assert f"unchanged first codebook for {rule.stuck_frames * 0.08:g} s" in one_line
    assert f"from {limits.min_s:g} to {limits.max_s:g} seconds" in one_line
    assert f"(from {EMBEDDED_RULE.target_chars} letters on)" in one_line
    assert f"(from {OFFICIAL_RULE.target_chars} letters on;" in one_line
