"""Deprecated option spellings: they still work, print one note, and are hidden from --help."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

import click
import pytest

from legato.cli.bench import SUBCOMMANDS
from legato.cli.main import COMMANDS, EXIT_USAGE, main

Capture = pytest.CaptureFixture[str]
RENAMED = {
    "--slots": "--max-num-seqs",
    "--streams": "--max-num-seqs",
    "--positions": "--max-seq-len",
    "--queue": "--max-queue",
    "--no-graphs": "--no-cuda-graphs",
    "--at-once": "--concurrency",
    "--start-ms": "--prebuffer-ms",
    "--changes": "--compare-positions",
    "--like": "--architecture",
}
USES = [
    ("serve", "--slots", "max_num_seqs", "3", 3),
    ("serve", "--positions", "max_seq_len", "500", 500),
    ("serve", "--queue", "max_queue", "9", 9),
    ("serve", "--no-graphs", "cuda_graphs", None, False),
    ("say", "--no-graphs", "cuda_graphs", None, False),
    ("verify", "--no-graphs", "cuda_graphs", None, False),
    ("doctor", "--positions", "max_seq_len", "500", 500),
    ("bench_memory", "--streams", "max_num_seqs", "3", 3),
    ("bench_load", "--slots", "max_num_seqs", "3", 3),
    ("bench_load", "--at-once", "concurrency", "1,2", (1.0, 2.0)),
    ("bench_load", "--start-ms", "prebuffer_ms", "40", 40.0),
    ("quantize", "--changes", "compare_positions", "4", 4),
]


def command(name: str) -> click.Command:
    module = name.replace("-", "_")
    found: click.Command = getattr(import_module(f"legato.cli.{module}"), module.removeprefix("bench_"))
    return found


def every_command() -> list[click.Command]:
    return [command(name) for name in (*COMMANDS, *(f"bench_{name}" for name in SUBCOMMANDS))]


@pytest.mark.parametrize(("name", "old", "parameter", "argument", "value"), USES)
def test_old_spelling_works_with_a_note(
    capsys: Capture, name: str, old: str, parameter: str, argument: str | None, value: object
) -> None:
    given = [old] if argument is None else [old, argument]
    assert command(name).make_context(name, given).params[parameter] == value
    assert capsys.readouterr().err == f"legato: {old} is deprecated; use {RENAMED[old]}\n"


def test_new_spelling_works_without_a_note_and_wins(capsys: Capture) -> None:
    serve = command("serve")
    assert serve.make_context("serve", []).params["max_num_seqs"] == 1
    assert serve.make_context("serve", []).params["cuda_graphs"] is True
    assert serve.make_context("serve", ["--no-cuda-graphs"]).params["cuda_graphs"] is False
    assert serve.make_context("serve", ["--max-num-seqs", "4"]).params["max_num_seqs"] == 4
    assert capsys.readouterr().err == ""
    for both in (["--slots", "3", "--max-num-seqs", "4"], ["--max-num-seqs", "4", "--slots", "3"]):
        assert serve.make_context("serve", both).params["max_num_seqs"] == 4


@pytest.mark.parametrize("value", ["0", "many"])
def test_value_of_an_old_spelling_is_validated(capsys: Capture, value: str) -> None:
    assert main(["serve", "--slots", value]) == EXIT_USAGE
    assert "--max-num-seqs" in capsys.readouterr().err


def test_migration_page_lists_every_renamed_option() -> None:
    page = (Path(__file__).parents[2] / "docs" / "migration.md").read_text(encoding="utf-8")
    assert dict(re.findall(r"^\| `(--[a-z-]+)` \| `(--[a-z-]+)` \|", page, re.MULTILINE)) == RENAMED


def test_old_spellings_are_hidden() -> None:
    for each in every_command():
        text = each.get_help(click.Context(each))
        for old in RENAMED:
            assert f" {old} " not in text, each.name


def test_every_command_that_runs_a_model_takes_model() -> None:
    without = {"models", "random-checkpoint", "bench", "report", "compare", "cluster"}
    for each in every_command():
        names = {name for parameter in each.params for name in parameter.opts}
        assert ({"--model", "-m"} <= names) == (each.name not in without), each.name


def test_every_option_is_described_in_one_sentence_or_two() -> None:
    for each in every_command():
        for parameter in each.params:
            if isinstance(parameter, click.Option) and not parameter.hidden:
                assert parameter.help, (each.name, parameter.name)
                assert parameter.help.partition("  [default")[0].endswith("."), (each.name, parameter.name)
