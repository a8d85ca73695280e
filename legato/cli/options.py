"""Building blocks for command-line options: option groups passed as one value, and deprecated spellings.

Holds no state. Every renamed option of every command goes through `renamed_option`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar

import click

from legato.cli.terminal import note

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Command = TypeVar("Command", bound=Callable[..., object])
Decorator = Callable[[Callable[..., object]], Callable[..., object]]


def option_group(parameter: str, group: type[DataclassInstance], options: Sequence[Decorator]) -> Decorator:
    """Add `options` to a command. The command receives one `group` instance as the keyword argument `parameter`.

    Each field of the dataclass `group` takes the value of the option with that name; a field without an option needs a
    default.
    """
    names = [field.name for field in fields(group)]

    def decorate(command: Callable[..., object]) -> Callable[..., object]:
        @wraps(command)
        def with_group(*arguments: object, **values: Any) -> object:
            selected = {name: values.pop(name) for name in names if name in values}
            values[parameter] = group(**selected)
            return command(*arguments, **values)

        return add_options(with_group, options)

    return decorate


def add_options(command: Callable[..., object], options: Sequence[Decorator]) -> Callable[..., object]:
    """Add `options` so that --help lists them in the given order."""
    for option in reversed(options):
        command = option(command)
    return command


def renamed_option(new: str, old: str, parameter: str, **attributes: Any) -> Decorator:
    """Option `new`, which also accepts the spelling `old`: hidden from --help, with a deprecation note when used.

    `parameter` is the command's argument name; `attributes` are those of `click.option`.
    """
    is_flag = "flag_value" in attributes

    def use_old_spelling(context: click.Context, _option: click.Parameter, value: object) -> None:
        if value is None or value is False:
            return
        note(f"{old} is deprecated; use {new}")
        # The hidden option is eager, so it is processed first. Its value becomes the default of the new option, which
        # validates it; a value given with the new spelling wins.
        default = attributes["flag_value"] if is_flag else value
        context.default_map = {**(context.default_map or {}), parameter: default}

    hidden = click.option(
        old,
        f"deprecated_{old.strip('-').replace('-', '_')}",
        is_flag=is_flag,
        default=False if is_flag else None,
        hidden=True,
        is_eager=True,
        expose_value=False,
        callback=use_old_spelling,
    )
    current = click.option(new, parameter, **attributes)
    return lambda command: current(hidden(command))
