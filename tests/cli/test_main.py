"""The command as a process: fast --help, clean standard output, one-line errors, exit codes, signals and pipes."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from legato.cli import main as main_module
from legato.cli.main import COMMANDS, EXIT_FAILED, EXIT_OK, EXIT_USAGE, OutputPipeClosedError, main
from legato.errors import ConfigError
from tests.conftest import TinyCheckpoint

LEGATO = (sys.executable, "-W", "error::UserWarning", "-m", "legato")


def run(*arguments: str, stdin: bytes = b"", cwd: Path | None = None) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run([*LEGATO, *arguments], input=stdin, capture_output=True, cwd=cwd, timeout=120, check=False)


@pytest.fixture(autouse=True)
def restore_logging() -> object:
    """Restore the logging configuration, which `main` replaces."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.mark.parametrize("arguments", [["--help"], *([name, "--help"] for name in COMMANDS), ["--version"]])
def test_help_imports_no_heavy_package(arguments: list[str]) -> None:
    code = (
        "import sys; from legato.cli.main import main; code = main(sys.argv[1:]);"
        "heavy = {'torch', 'numpy', 'soundfile', 'huggingface_hub', 'rich', 'safetensors'} & set(sys.modules);"
        "sys.exit(f'loaded {heavy}' if heavy else code)"
    )
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr.decode()
    assert done.stdout


def test_help_of_every_command_has_examples(capsys: pytest.CaptureFixture[str]) -> None:
    for name in COMMANDS:
        assert main([name, "--help"]) == EXIT_OK
        text = capsys.readouterr().out
        assert "Examples:" in text
        assert f"legato {name}" in text
    assert main(["--help"]) == EXIT_OK
    text = capsys.readouterr().out
    assert all(f"\n  {name} " in text for name in COMMANDS)
    assert "Exit codes:" in text
    assert "..." not in text.partition("Commands:")[2], "a summary is truncated"


def test_import_loads_no_torch_and_prints_nothing() -> None:
    """CASES R70."""
    code = "import sys, legato; print(sorted({'torch', 'numpy'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60, check=False)
    assert (done.stdout, done.stderr) == (b"[]\n", b"")


def test_error_is_one_line_and_debug_adds_traceback() -> None:
    done = run("voices", "--model", "no-such-thing")
    assert done.returncode == EXIT_USAGE
    assert done.stdout == b""
    assert done.stderr.startswith(b"legato: error in model: 'no-such-thing' is neither a folder nor a hub id")
    assert done.stderr.count(b"\n") == 1
    for arguments in (["--debug", "voices"], ["voices", "--debug"]):
        debugged = run(*arguments, "--model", "no-such-thing")
        assert debugged.returncode == EXIT_USAGE
        assert b"Traceback" in debugged.stderr
        assert b"legato: error in model" in debugged.stderr


def raising(error: BaseException) -> object:
    def fail(*_arguments: object, **_options: object) -> None:
        raise error

    return fail


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (ConfigError("bad value", field="talker_config.vocab_size"), 2, "error in talker_config.vocab_size: bad value"),
        (OSError(28, "No space left on device"), 1, "No space left on device"),
        (ZeroDivisionError("division by zero"), 1, "unexpected ZeroDivisionError: division by zero (add --debug"),
        (KeyboardInterrupt(), 130, "interrupted"),
        (OutputPipeClosedError(), 141, ""),
    ],
)
def test_exit_code_of_each_exception(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: BaseException, code: int, message: str
) -> None:
    monkeypatch.setattr(main_module.legato, "main", raising(error))
    monkeypatch.setattr(main_module, "_discard_stdout", lambda: None)
    assert main(["voices"]) == code
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.err.count("\n") == (1 if message else 0)
    assert captured.out == ""


@pytest.mark.parametrize(("given", "meant"), [("sya", "say"), ("quantise", "quantize"), ("verfy", "verify")])
def test_unknown_command_suggests_the_closest(capsys: pytest.CaptureFixture[str], given: str, meant: str) -> None:
    assert main([given]) == EXIT_USAGE
    assert f"No such command '{given}'. Did you mean '{meant}'?" in capsys.readouterr().err
    assert main(["xyzzy"]) == EXIT_USAGE
    assert "Did you mean" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "flags", "rest"),
    [
        (["say", "--verbose", "Hi."], ["--verbose"], ["say", "Hi."]),
        (["-v", "say", "-v", "--debug"], ["--verbose", "--debug"], ["say"]),
        (["say", "--", "-v", "--debug"], [], ["say", "--", "-v", "--debug"]),
    ],
)
def test_global_flags_are_accepted_after_the_command(arguments: list[str], flags: list[str], rest: list[str]) -> None:
    assert main_module.split_global_flags(arguments) == (flags, rest)


def test_text_after_dashes_may_look_like_the_debug_flag(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["say", "-o", "x.xyz", "--", "--debug"]) == EXIT_USAGE
    assert "Traceback" not in capsys.readouterr().err


def test_stdout_carries_only_raw_samples(tiny_checkpoint: TinyCheckpoint, tmp_path: Path) -> None:
    """CASES R70, R48: a real model writes exactly its frames to a real pipe."""
    folder = str(tiny_checkpoint("tiny-custom-voice"))
    arguments = ["say", "-m", folder, "--max-frames", "5", "--threads", "1", "-o", "-", "--verbose"]
    done = run(*arguments, stdin=b"Hello from a pipe. ", cwd=tmp_path)
    assert done.returncode == EXIT_OK, done.stderr.decode()
    assert len(done.stdout) == 5 * 1920 * 2
    messages = done.stderr.decode()
    assert "finished: max_frames" in messages
    assert "limit: 5 frames (--max-frames)" in messages
    assert "warning: stopped early after 5 frames: limit of 5 frames (--max-frames) reached" in messages
    assert not list(tmp_path.iterdir())


def test_interrupt_while_waiting_for_text_exits_cleanly(tiny_checkpoint: TinyCheckpoint, tmp_path: Path) -> None:
    """The input never ends, so the engine waits for text. Ctrl-C ends the process without a traceback."""
    folder = str(tiny_checkpoint("tiny-custom-voice"))
    command = [*LEGATO, "say", "-m", folder, "--threads", "1", "-o", "x.wav"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, cwd=tmp_path) as process:
        assert process.stdin is not None
        assert process.stderr is not None
        process.stdin.write(b"Hello there, my dear friend, ")
        process.stdin.flush()
        first = process.stderr.readline()
        assert first.startswith(b"legato: loaded"), first
        time.sleep(1.0)
        process.send_signal(signal.SIGINT)
        messages = process.stderr.read()
        assert process.wait(timeout=60) == 130
    assert b"legato: cancelled: " in messages
    assert b"Traceback" not in messages


@pytest.mark.skipif(not hasattr(signal, "SIGPIPE"), reason="no pipes to break")
def test_say_exits_cleanly_on_broken_pipe(tiny_checkpoint: TinyCheckpoint, tmp_path: Path) -> None:
    folder = str(tiny_checkpoint("tiny-custom-voice"))
    reader, writer = os.pipe()
    os.close(reader)
    command = [*LEGATO, "say", "Hello there.", "-m", folder, "--max-frames", "20", "--threads", "1", "-o", "-"]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, cwd=tmp_path, timeout=120, check=False)
    os.close(writer)
    assert done.returncode == 141
    assert b"Traceback" not in done.stderr
    assert b"Exception" not in done.stderr


def test_exit_codes_of_failure_and_refusal_differ() -> None:
    assert EXIT_FAILED != EXIT_USAGE
