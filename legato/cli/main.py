"""The command group. Imports commands on demand and converts exceptions to one-line messages and exit codes.

Configures logging for the process; `model_options.py` configures torch. Imports neither torch nor numpy, so
`legato --help` is fast.
"""

from __future__ import annotations

import difflib
import logging
import os
import sys
from collections.abc import Sequence
from importlib import import_module

import click

from legato import __version__
from legato.cli import best_effort
from legato.cli.terminal import note
from legato.errors import LegatoError

COMMANDS = ("say", "serve", "cluster", "voices", "models", "doctor", "verify", "bench", "quantize", "random-checkpoint")
"""In the order of `legato --help`. Command NAME is the function NAME in the module `legato.cli.NAME` (with _ for -)."""
DEPRECATED_COMMANDS = {"synth": "random-checkpoint"}
"""Old command names, which still work with a note, and the current names."""

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130
EXIT_PIPE = 141

GLOBAL_FLAGS = {"--debug": "--debug", "--verbose": "--verbose", "-v": "--verbose"}
"""Flags of `legato` that are also accepted after the command name."""

EPILOG = """\b
Examples:
  legato say "Hello from Legato." -o hello.wav
  echo "As it arrives." | legato say --voice michael --play
  legato say -f story.txt -o - | aplay -r 24000 -f S16_LE -c 1
  legato serve --max-num-seqs 4
  legato COMMAND --help

Exit codes: 0 success, 1 failure, 2 invalid usage or input, 130 interrupted, 141 output pipe closed.
"""


class LazyGroup(click.Group):
    """Command group that imports the module of a command (`stem` + name) only when it is needed."""

    names: tuple[str, ...] = COMMANDS
    stem = "legato.cli."

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  click's signature
        """All command names, in the order of --help."""
        return list(self.names)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002  click's signature
        """The command, or None if the name is unknown."""
        if cmd_name not in self.names:
            return None
        name = cmd_name.replace("-", "_")
        command: click.Command = getattr(import_module(f"{self.stem}{name}"), name)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Resolve the command name, also a deprecated one. The error for an unknown name suggests the closest one."""
        if args and args[0] in DEPRECATED_COMMANDS and DEPRECATED_COMMANDS[args[0]] in self.names:
            new = DEPRECATED_COMMANDS[args[0]]
            note(f"{args[0]} is deprecated; use {new}")
            args = [new, *args[1:]]
        if args and args[0] not in self.names and not ctx.resilient_parsing:
            similar = difflib.get_close_matches(args[0], self.names, n=1)
            hint = f" Did you mean {similar[0]!r}?" if similar else ""
            ctx.fail(f"No such command {args[0]!r}.{hint}")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> object:
        """Run the command. click handles a broken pipe itself, so it is converted to `OutputPipeClosedError` here."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:
            raise OutputPipeClosedError from error


class OutputPipeClosedError(Exception):
    """The reader of standard output closed the pipe."""


@click.group(cls=LazyGroup, epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="legato")
@click.option(
    "--verbose", "-v", is_flag=True, help="Show details and the library's log (also accepted after the command)."
)
@click.option("--debug", is_flag=True, help="Show the traceback of an error (also accepted after the command).")
def legato(verbose: bool, debug: bool) -> None:
    """Text-to-speech with Qwen3-TTS-class models: exact streaming inference and serving.

    Audio goes to files, to standard output or to the sound device; messages go to standard error.
    """
    level = logging.DEBUG if debug else logging.INFO if verbose else logging.WARNING
    logging.basicConfig(level=level, stream=sys.stderr, format="%(name)s: %(message)s", force=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code. Errors are one line on standard error, without a traceback."""
    best_effort.install()
    flags, rest = split_global_flags(list(sys.argv[1:] if arguments is None else arguments))
    debug = "--debug" in flags
    try:
        result = legato.main([*flags, *rest], prog_name="legato", standalone_mode=False)
    except click.exceptions.Exit as stop:
        return int(stop.exit_code)
    except click.ClickException as error:
        error.show(sys.stderr)
        return EXIT_USAGE
    except (KeyboardInterrupt, click.Abort):
        note("interrupted")
        return EXIT_INTERRUPTED
    except OutputPipeClosedError:
        _discard_stdout()
        return EXIT_PIPE
    except LegatoError as error:
        _report(error, f"error in {error.field}: {error}" if error.field else f"error: {error}", debug)
        return EXIT_USAGE
    except OSError as error:
        _report(error, f"error: {error}", debug)
        return EXIT_FAILED
    except Exception as error:  # boundary: any other error becomes one line; --debug shows the traceback
        line = f"unexpected {type(error).__name__}: {error} (add --debug for the traceback, and please report it)"
        _report(error, line, debug)
        return EXIT_FAILED
    return result if isinstance(result, int) else EXIT_OK


def split_global_flags(arguments: list[str]) -> tuple[list[str], list[str]]:
    """Split off the `GLOBAL_FLAGS` before a `--`. Returns the flags without duplicates, and the other arguments."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    options = arguments[:end]
    flags = dict.fromkeys(GLOBAL_FLAGS[argument] for argument in options if argument in GLOBAL_FLAGS)
    rest = [argument for argument in options if argument not in GLOBAL_FLAGS]
    return list(flags), rest + arguments[end:]


def _report(error: BaseException, line: str, debug: bool) -> None:
    if debug:
        logging.getLogger("legato").error("traceback", exc_info=error)
    note(line)


def _discard_stdout() -> None:
    """Redirect standard output to the null device, so that the flush at interpreter exit does not fail again."""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (OSError, ValueError):
        sys.stdout = None
