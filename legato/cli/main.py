"""The command group, loaded lazily, and the one place where errors become lines and exit codes.

Owns the process's settings that a command line may make: logging. Threads are set in `load.py`. Nothing here imports
torch or numpy, so that `legato --help` answers at once.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence
from importlib import import_module

import click

from legato import __version__
from legato.cli.terminal import note
from legato.errors import LegatoError

COMMANDS = ("say", "serve", "voices", "models", "doctor", "verify", "bench", "quantize", "synth")
"""In the order of `legato --help`; each is the module `legato.cli.NAME` with a command called NAME."""

EXIT_OK, EXIT_FAILED, EXIT_REFUSED, EXIT_INTERRUPTED, EXIT_PIPE = 0, 1, 2, 130, 141

EPILOG = """\b
Examples:
  legato say "Hello from Legato." -o hello.wav
  echo "As it arrives." | legato say --voice michael --play
  legato say -f story.txt -o - | aplay -r 24000 -f S16_LE -c 1
  legato COMMAND --help

Exit codes: 0 done, 1 a check or the work itself failed, 2 the request was refused (one line says why), 130 interrupted.
"""


class LazyGroup(click.Group):
    """Imports a command's file when the command, or the list of all, is asked for: `stem` and its name."""

    names: tuple[str, ...] = COMMANDS
    stem = "legato.cli."

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  click's signature
        """All names, in the order in which they are taught."""
        return list(self.names)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002  click's signature
        """The command, or None for a name that is none."""
        if cmd_name not in self.names:
            return None
        command: click.Command = getattr(import_module(f"{self.stem}{cmd_name}"), cmd_name)
        return command

    def invoke(self, ctx: click.Context) -> object:
        """Run the command. click turns a broken pipe into an exit of its own, so it is renamed on its way."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:
            raise ReaderLeftError from error


class ReaderLeftError(Exception):
    """Whoever read our standard output has closed it."""


@click.group(cls=LazyGroup, epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="legato")
@click.option("--verbose", "-v", is_flag=True, help="Also log what the library does, to standard error.")
@click.option("--debug", is_flag=True, help="Show the traceback of an error (also accepted after the command).")
def legato(verbose: bool, debug: bool) -> None:
    """Speak text with Qwen3-TTS-class models, streamed exactly.

    Sound goes to files or to standard output, everything else that `say` tells goes to standard error.
    """
    level = logging.DEBUG if debug else logging.INFO if verbose else logging.WARNING
    logging.basicConfig(level=level, stream=sys.stderr, format="%(name)s: %(message)s", force=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code; errors are one line on standard error, never a traceback."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in _before_dashes(given)
    given = ["--debug"] * debug + _without(given, "--debug")
    try:
        result = legato.main(given, prog_name="legato", standalone_mode=False)
    except click.exceptions.Exit as stop:
        return int(stop.exit_code)
    except click.ClickException as error:
        error.show(sys.stderr)
        return EXIT_REFUSED
    except (KeyboardInterrupt, click.Abort):
        note("interrupted")
        return EXIT_INTERRUPTED
    except ReaderLeftError:
        _forget_stdout()
        return EXIT_PIPE
    except LegatoError as error:
        return _report(error, f"error in {error.field}: {error}" if error.field else f"error: {error}", debug)
    except OSError as error:
        _report(error, f"error: {error}", debug)
        return EXIT_FAILED
    except Exception as error:  # boundary: whatever is left becomes a line; --debug shows where it came from
        _report(
            error, f"unexpected {type(error).__name__}: {error} (add --debug to see where, and please report it)", debug
        )
        return EXIT_FAILED
    return result if isinstance(result, int) else EXIT_OK


def _report(error: BaseException, line: str, debug: bool) -> int:
    if debug:
        logging.getLogger("legato").error("traceback", exc_info=error)
    note(line)
    return EXIT_REFUSED


def _before_dashes(arguments: list[str]) -> list[str]:
    return arguments[: arguments.index("--")] if "--" in arguments else arguments


def _without(arguments: list[str], flag: str) -> list[str]:
    options = [argument for argument in _before_dashes(arguments) if argument != flag]
    return options + arguments[len(_before_dashes(arguments)) :]


def _forget_stdout() -> None:
    """The reader of our output left: keep the interpreter from complaining when it flushes at exit."""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (OSError, ValueError):
        sys.stdout = None
