"""The command from outside: light to ask, clean on standard output, one line for an error, a code for each end."""

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
from legato.cli.main import COMMANDS, EXIT_FAILED, EXIT_OK, EXIT_REFUSED, ReaderLeftError, main
from legato.errors import ConfigError
from tests.conftest import TinyCheckpoint

LEGATO = (sys.executable, "-W", "error::UserWarning", "-m", "legato")


def run(*arguments: str, stdin: bytes = b"", cwd: Path | None = None) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run([*LEGATO, *arguments], input=stdin, capture_output=True, cwd=cwd, timeout=120, check=False)


@pytest.fixture(autouse=True)
def keep_logging() -> object:
    """`main` configures logging for the process; give the tests theirs back."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.mark.parametrize("arguments", [["--help"], *([name, "--help"] for name in COMMANDS), ["--version"]])
def test_help_loads_nothing_heavy(arguments: list[str]) -> None:
    code = (
        "import sys; from legato.cli.main import main; code = main(sys.argv[1:]);"
        "heavy = {'torch', 'numpy', 'soundfile', 'huggingface_hub', 'rich', 'safetensors'} & set(sys.modules);"
        "sys.exit(f'loaded {heavy}' if heavy else code)"
    )
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr.decode()
    assert done.stdout


def test_every_command_teaches_by_example(capsys: pytest.CaptureFixture[str]) -> None:
    for name in COMMANDS:
        assert main([name, "--help"]) == EXIT_OK
        told = capsys.readouterr().out
        assert "Examples:" in told
        assert f"legato {name}" in told
    assert main(["--help"]) == EXIT_OK
    listed = capsys.readouterr().out
    assert all(f"\n  {name} " in listed for name in COMMANDS)
    assert "Exit codes:" in listed
    assert "..." not in listed.partition("Commands:")[2], "a summary is cut off"


def test_importing_is_light_and_silent() -> None:
    """CASES R70."""
    code = "import sys, legato; print(sorted({'torch', 'numpy'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60, check=False)
    assert (done.stdout, done.stderr) == (b"[]\n", b"")


def test_an_error_is_one_line_and_debug_shows_where() -> None:
    done = run("voices", "--model", "no-such-thing")
    assert done.returncode == EXIT_REFUSED
    assert done.stdout == b""
    assert done.stderr.startswith(b"legato: error in model: 'no-such-thing' is neither a folder nor a hub id")
    assert done.stderr.count(b"\n") == 1
    for arguments in (["--debug", "voices"], ["voices", "--debug"]):
        debugged = run(*arguments, "--model", "no-such-thing")
        assert debugged.returncode == EXIT_REFUSED
        assert b"Traceback" in debugged.stderr
        assert b"legato: error in model" in debugged.stderr


def raising(error: BaseException) -> object:
    def fail(*_arguments: object, **_how: object) -> None:
        raise error

    return fail


@pytest.mark.parametrize(
    ("error", "code", "told"),
    [
        (ConfigError("bad value", field="talker_config.vocab_size"), 2, "error in talker_config.vocab_size: bad value"),
        (OSError(28, "No space left on device"), 1, "No space left on device"),
        (ZeroDivisionError("division by zero"), 1, "unexpected ZeroDivisionError: division by zero (add --debug"),
        (KeyboardInterrupt(), 130, "interrupted"),
        (ReaderLeftError(), 141, ""),
    ],
)
def test_each_kind_of_end_has_its_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: BaseException, code: int, told: str
) -> None:
    monkeypatch.setattr(main_module.legato, "main", raising(error))
    monkeypatch.setattr(main_module, "_forget_stdout", lambda: None)
    assert main(["voices"]) == code
    captured = capsys.readouterr()
    assert told in captured.err
    assert captured.err.count("\n") == (1 if told else 0)
    assert captured.out == ""


def test_a_text_may_look_like_the_debug_flag(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["say", "-o", "x.xyz", "--", "--debug"]) == EXIT_REFUSED
    assert "Traceback" not in capsys.readouterr().err


def test_raw_speech_alone_is_on_standard_output(tiny_checkpoint: TinyCheckpoint, tmp_path: Path) -> None:
    """CASES R70, R48: whole frames of a real model through a real pipe, and not a byte more."""
    folder = str(tiny_checkpoint("tiny-custom-voice"))
    done = run(
        "say",
        "-m",
        folder,
        "--max-frames",
        "5",
        "--threads",
        "1",
        "-o",
        "-",
        stdin=b"Hello from a pipe. ",
        cwd=tmp_path,
    )
    assert done.returncode == EXIT_OK, done.stderr.decode()
    assert len(done.stdout) == 5 * 1920 * 2
    told = done.stderr.decode()
    assert "finished: max_frames" in told
    assert "limit: 5 frames (--max-frames)" in told
    assert not list(tmp_path.iterdir())


def test_an_interrupt_ends_cleanly(tiny_checkpoint: TinyCheckpoint, tmp_path: Path) -> None:
    """The text never ends, so the model waits; Ctrl-C gets through, and no traceback comes out."""
    folder = str(tiny_checkpoint("tiny-custom-voice"))
    command = [*LEGATO, "say", "-m", folder, "--threads", "1", "-o", "x.wav"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, cwd=tmp_path) as process:
        assert process.stdin is not None
        assert process.stderr is not None
        process.stdin.write(b"Hello there, my dear friend, ")
        process.stdin.flush()
        first = process.stderr.readline()
        assert first.startswith(b"legato: model"), first
        time.sleep(1.0)
        process.send_signal(signal.SIGINT)
        told = process.stderr.read()
        assert process.wait(timeout=60) == 130
    assert b"legato: cancelled after" in told
    assert b"Traceback" not in told


@pytest.mark.skipif(not hasattr(signal, "SIGPIPE"), reason="no pipes to break")
def test_a_reader_who_leaves_is_no_error(tiny_checkpoint: TinyCheckpoint, tmp_path: Path) -> None:
    folder = str(tiny_checkpoint("tiny-custom-voice"))
    reader, writer = os.pipe()
    os.close(reader)
    command = [*LEGATO, "say", "Hello there.", "-m", folder, "--max-frames", "20", "--threads", "1", "-o", "-"]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, cwd=tmp_path, timeout=120, check=False)
    os.close(writer)
    assert done.returncode == 141
    assert b"Traceback" not in done.stderr
    assert b"Exception" not in done.stderr


def test_a_failed_check_is_not_a_refusal() -> None:
    assert EXIT_FAILED != EXIT_REFUSED
