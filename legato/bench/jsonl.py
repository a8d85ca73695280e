"""Records as JSON lines: write frozen dataclasses, read them back with every name and type checked.

A record's dataclass is its schema: unknown keys, missing keys and values of another type are refused with their path.
A field that older files lack has a default. Files of schema 1 are read through one mapping of renamed fields.
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

SCHEMA = "legato-bench-2"
SCHEMA_1 = "legato-bench-1"

SCHEMA_1_KINDS = {"aside": "side_cost", "ceilings": "roofline", "turn": "engine_step"}
"""Record kinds that were renamed in schema 2."""
Renames = Mapping[str, Mapping[str, str]]
"""Old field names by dataclass, each with the present name."""
SCHEMA_1_FIELDS: Renames = {
    "ModelInfo": {"quantisation": "quantization"},
    "RequestRecord": {"asked": "request", "settled": "synchronized", "sounds": "audio"},
    "RequestInfo": {"slots": "max_num_seqs", "inside": "included"},
    "SideCostRecord": {"what": "operation", "inside": "stage"},
    "BatchRecord": {"positions": "max_seq_len"},
    "MemoryRecord": {"slots": "kv_slots", "positions": "max_seq_len"},
    "RooflineRecord": {"ceilings": "roofline"},
    "Roofline": {"matrix": "gemm"},
    "ReadBandwidth": {"set_mib": "working_set_mib"},
    "StepTiming": {"arithmetic_limit_ms": "compute_limit_ms"},
    "EngineStepRecord": {"turn": "engine_step"},
    "EngineStepTiming": {
        "turns": "steps",
        "turn_ms": "step_ms",
        "products_ms": "gemm_ms",
        "arithmetic_ms": "other_kernels_ms",
        "draws_ms": "sampling_ms",
    },
}

_Record = TypeVar("_Record")


def to_json(kind: str, record: DataclassInstance) -> dict[str, object]:
    """The record as a JSON object with its schema and kind."""
    return {"schema": SCHEMA, "kind": kind, **asdict(record)}


def write_lines(path: Path, lines: Iterable[Mapping[str, object]]) -> None:
    """Write one object per line, replacing the file. NaN and infinity are not JSON and raise `ValueError`."""
    text = "".join(json.dumps(line, ensure_ascii=False, allow_nan=False) + "\n" for line in lines)
    path.write_text(text, encoding="utf-8")


def read_lines(path: Path, record_types: Mapping[str, type[DataclassInstance]]) -> Iterator[DataclassInstance]:
    """Read and check the records of a file. `record_types`: the dataclass of each kind.

    Another kind, or a line that is not a valid record, is an `InputError`.
    """
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        place = f"{path.name}:{number}"
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except json.JSONDecodeError as error:
            raise InputError(f"{place} is not JSON: {error}; use a file written by --records") from error
        schema = value.pop("schema", "") if isinstance(value, dict) else ""
        if schema not in (SCHEMA, SCHEMA_1):
            raise InputError(f"{place} is not a {SCHEMA} record; use a file written by --records")
        kind = value.pop("kind", "")
        renames: Renames = {}
        if schema == SCHEMA_1:
            kind, renames = SCHEMA_1_KINDS.get(kind, kind), SCHEMA_1_FIELDS
        if kind not in record_types:
            raise InputError(
                f"{place}: unknown record kind {kind!r}; expected one of {', '.join(sorted(record_types))}"
            )
        yield read(record_types[kind], value, place, renames=renames)


def read(record: type[_Record], value: object, place: str, *, renames: Renames | None = None) -> _Record:
    """Build a dataclass from JSON. `place` is the start of the path in error messages (`InputError`)."""
    result = _read(record, value, place, renames or {})
    assert isinstance(result, record)
    return result


def _read(kind: object, value: object, place: str, renames: Renames) -> object:
    """`value` as `kind`: a dataclass, `X | None`, `tuple[X, ...]`, `dict[str, X]`, float, int, str or bool."""
    if isinstance(kind, type) and is_dataclass(kind):
        return _dataclass(kind, value, place, renames)
    if isinstance(kind, types.UnionType):
        return _optional(kind, value, place, renames)
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is tuple and arguments[1:] == (...,) and isinstance(value, list):
        return tuple(_read(arguments[0], item, f"{place}[{index}]", renames) for index, item in enumerate(value))
    if origin is dict and isinstance(value, dict):
        return {str(name): _read(arguments[1], item, f"{place}.{name}", renames) for name, item in value.items()}
    if kind is float and isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        return float(value)
    # `type(value) is kind`, because bool is a subclass of int
    if isinstance(kind, type) and type(value) is kind and kind in (str, int, bool):
        return value
    expected = kind.__name__ if isinstance(kind, type) and not isinstance(kind, types.GenericAlias) else str(kind)
    raise InputError(f"{place} must be {expected}, not {value!r}")


def _optional(kind: types.UnionType, value: object, place: str, renames: Renames) -> object:
    """`X | None`. Schema 1 wrote it as a list of length 0 or 1."""
    (present,) = (each for each in get_args(kind) if each is not types.NoneType)
    if renames and isinstance(value, list) and len(value) <= 1:
        value = value[0] if value else None
    return None if value is None else _read(present, value, place, renames)


def _dataclass(kind: type, value: object, place: str, renames: Renames) -> object:
    if not isinstance(value, dict):
        raise InputError(f"{place} must be an object, not {value!r}")
    renamed = renames.get(kind.__name__, {})
    value = {renamed.get(name, name): item for name, item in value.items()}
    field_types = get_type_hints(kind)
    names = [field.name for field in fields(kind)]
    for name in value:
        if name not in names:
            raise InputError(f"{place}.{name} is not a field of this record: another version of Legato wrote it")
    for field in fields(kind):
        if field.name not in value and field.default is MISSING:
            raise InputError(f"{place}.{field.name} is missing: another version of Legato wrote it")
    arguments = {
        name: _read(field_types[name], value[name], f"{place}.{name}", renames) for name in names if name in value
    }
    try:
        return kind(**arguments)
    except ValueError as error:
        raise InputError(f"{place}: {error}") from error
