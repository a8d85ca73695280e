"""Records as JSON lines: frozen dataclasses out, and back in with every name and type checked. Owns the schema's name.

A record's dataclass is its schema: a key that it does not have, a key that is missing and a value of another type are
refused by their path. A key that older files do not have has a default. Knows no record by name.
"""

from __future__ import annotations

import json
import math
import types
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING, asdict, fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, get_args, get_origin, get_type_hints

from legato.errors import InputError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

SCHEMA = "legato-bench-1"

_Record = TypeVar("_Record")


def to_json(kind: str, record: DataclassInstance) -> dict[str, object]:
    """The record as one JSON object that says what it is."""
    return {"schema": SCHEMA, "kind": kind, **asdict(record)}


def write_lines(path: Path, lines: Iterable[Mapping[str, object]]) -> None:
    """One object a line, over what was there. NaN and infinity are no JSON, and raise."""
    text = "".join(json.dumps(line, ensure_ascii=False, allow_nan=False) + "\n" for line in lines)
    path.write_text(text, encoding="utf-8")


def read_lines(path: Path, kinds: Mapping[str, type[DataclassInstance]]) -> Iterator[DataclassInstance]:
    """The records in a file, each checked. `kinds`: the dataclass of each kind; another kind is an `InputError`."""
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        place = f"{path.name}:{number}"
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except json.JSONDecodeError as error:
            raise InputError(f"{place} is no JSON: {error}; give a file that --records wrote") from error
        if not isinstance(value, dict) or value.pop("schema", "") != SCHEMA:
            raise InputError(f"{place} is no record of {SCHEMA}; give a file that --records wrote")
        kind = value.pop("kind", "")
        if kind not in kinds:
            raise InputError(f"{place}: records of kind {kind!r} are not read here, only {', '.join(sorted(kinds))}")
        yield read(kinds[kind], value, place)


def read(record: type[_Record], value: object, place: str) -> _Record:
    """A dataclass from JSON. `place` begins the path that an `InputError` names."""
    got = _read(record, value, place)
    assert isinstance(got, record)
    return got


def _read(kind: object, value: object, place: str) -> object:
    if isinstance(kind, type) and is_dataclass(kind):
        return _dataclass(kind, value, place)
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is tuple and arguments[1:] == (...,) and isinstance(value, list):
        return tuple(_read(arguments[0], each, f"{place}[{number}]") for number, each in enumerate(value))
    if origin is dict and isinstance(value, dict):
        return {str(name): _read(arguments[1], each, f"{place}.{name}") for name, each in value.items()}
    if kind is float and isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        return float(value)
    if isinstance(kind, type) and type(value) is kind and kind in (str, int, bool):
        return value
    named = kind.__name__ if isinstance(kind, type) and not isinstance(kind, types.GenericAlias) else str(kind)
    raise InputError(f"{place} must be {named}, not {value!r}")


def _dataclass(kind: type, value: object, place: str) -> object:
    if not isinstance(value, dict):
        raise InputError(f"{place} must be an object, not {value!r}")
    types_of = get_type_hints(kind)
    names = [field.name for field in fields(kind)]
    for name in value:
        if name not in names:
            raise InputError(f"{place}.{name} is no field of this record: another version of Legato wrote it")
    for field in fields(kind):
        if field.name not in value and field.default is MISSING:
            raise InputError(f"{place}.{field.name} is missing: another version of Legato wrote it")
    given = (name for name in names if name in value)
    try:
        return kind(**{name: _read(types_of[name], value[name], f"{place}.{name}") for name in given})
    except ValueError as error:
        raise InputError(f"{place}: {error}") from error
