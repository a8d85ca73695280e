"""Parses options of `legato serve` without starting a server."""

from __future__ import annotations

import click

from legato.cli.serve_options import ServeOptions, serve_options


def parsed_options(*arguments: str) -> ServeOptions:
    """The server options that `legato serve ARGUMENTS` would use. Raises `click.UsageError`."""
    received: list[ServeOptions] = []

    @click.command()
    @serve_options
    def command(options: ServeOptions) -> None:
        received.append(options)

    command.main(list(arguments), standalone_mode=False)
    return received[0]
