"""Public interfaces without their texts: command parameters, public names and signatures, the OpenAPI document."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable

import click

import legato
from tests.frozen.subjects import Subjects, commands

TEXT_FIELDS = ("description", "summary", "title", "operationId")
JSON_TYPES = (str, int, float, bool, type(None))
LIMITS = ("choices", "case_sensitive", "min", "max", "exists", "file_okay", "dir_okay", "writable", "allow_dash")

# --- commands --------------------------------------------------------------------------------------------------------


def take_commands(_subjects: Subjects) -> object:
    """Every command with its parameters."""
    group = commands()
    return _commands(_context(group, None), group, "legato")


def _context(command: click.Command, parent: click.Context | None) -> click.Context:
    settings = {"info_name": command.name, "parent": parent, **command.context_settings}
    return click.Context(command, **settings)


def _commands(context: click.Context, command: click.Command, words: str) -> dict[str, object]:
    parameters = [_parameter(each) for each in command.params]
    found: dict[str, object] = {
        words: {"parameters": parameters, "help": sorted(command.get_help_option_names(context))}
    }
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            found |= _commands(_context(inner, context), inner, f"{words} {name}")
    return found


def _parameter(parameter: click.Parameter) -> dict[str, object]:
    """The parameter's structure. A computed default is recorded as a placeholder."""
    info = parameter.to_info_dict()
    kept = ("name", "param_type_name", "opts", "secondary_opts", "required", "nargs", "multiple", "envvar", "is_flag")
    default = info["default"]
    if info.get("is_flag") and default is None:
        default = False  # versions of click differ
    limits = {name: _plain(info["type"][name]) for name in LIMITS if info["type"].get(name) is not None}
    body = {name: info[name] for name in kept if name in info}
    return {
        **body,
        "hidden": info.get("hidden", False),
        "default": _plain(default),
        "type": parameter.type.name,
        **limits,
    }


def _plain(value: object) -> object:
    """`value` as JSON. Other objects are recorded as a placeholder, because their types may be renamed."""
    if isinstance(value, JSON_TYPES):
        return value
    if isinstance(value, (tuple, list)):
        return [_plain(each) for each in value]
    return "<computed>" if callable(value) else "<object>"


# --- names -----------------------------------------------------------------------------------------------------------


def take_names(_subjects: Subjects) -> object:
    """`legato.__all__`, signatures, and the fields of the dataclasses."""
    exported = {name: getattr(legato, name) for name in legato.__all__}
    methods = {name: each for name, each in vars(legato.Legato).items() if not name.startswith("_")}
    signatures: dict[str, Callable[..., object]] = {"load": legato.load}
    signatures |= {
        f"Legato.{name}": each for name, each in methods.items() if name in ("stream", "say", "voices", "close")
    }
    return {
        "all": sorted(legato.__all__),
        "kinds": {name: "class" if inspect.isclass(each) else "function" for name, each in exported.items()},
        "methods": sorted(methods),
        "signatures": {name: _signature(each) for name, each in signatures.items()},
        "fields": {
            name: _fields(each)
            for name, each in exported.items()
            if isinstance(each, type) and dataclasses.is_dataclass(each)
        },
    }


def _signature(function: Callable[..., object]) -> list[object]:
    parameters = inspect.signature(function).parameters.values()
    return [[each.name, each.kind.name, _default(each.default, inspect.Parameter.empty)] for each in parameters]


def _fields(kind: type[object]) -> list[object]:
    assert dataclasses.is_dataclass(kind)
    return [[each.name, _default(each.default, dataclasses.MISSING)] for each in dataclasses.fields(kind)]


def _default(value: object, missing: object) -> object:
    return "<required>" if value is missing else _plain(value)


# --- OpenAPI ---------------------------------------------------------------------------------------------------------


def take_openapi(subjects: Subjects) -> object:
    """The document without texts and without names of classes and functions. References to schemas are inlined."""
    document = subjects.openapi()
    info = document["info"]
    assert isinstance(info, dict)
    return {"title": info["title"], "openapi": document["openapi"], "paths": _inlined(document["paths"], document)}


def take_openapi_names(subjects: Subjects) -> object:
    """The names that client generators use. They derive from the names of functions and classes."""
    document = subjects.openapi()
    components, paths = document["components"], document["paths"]
    assert isinstance(components, dict)
    assert isinstance(paths, dict)
    operations = {
        f"{verb} {path}": operation["operationId"] for path, verbs in paths.items() for verb, operation in verbs.items()
    }
    return {"schemas": sorted(components["schemas"]), "operations": operations}


def _inlined(value: object, document: dict[str, object]) -> object:
    if isinstance(value, list):
        return [_inlined(each, document) for each in value]
    if not isinstance(value, dict):
        return value
    if isinstance(value.get("$ref"), str):
        found: object = document
        for name in value["$ref"].removeprefix("#/").split("/"):
            assert isinstance(found, dict)
            found = found[name]
        return _inlined(found, document)
    # A property may be named `title`: its value is then an object, not a text.
    kept = {name: each for name, each in value.items() if name not in TEXT_FIELDS or not isinstance(each, str)}
    return {name: _inlined(each, document) for name, each in kept.items()}
