"""Read and write benchmark records as JSON lines. Reading checks every name and type.

The dataclass of a record is its schema: unknown keys, missing keys and values of another type are an `InputError` with
their path. A field that was added later has a default. Files of older schemas are read through `SCHEMAS`.
"""

from __future__ import annotations

import json
import math
import types
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, get_args, get_origin, get_type_hints

from legato.errors import InputError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

SCHEMA = "legato-bench-3"
SCHEMA_1, SCHEMA_2 = "legato-bench-1", "legato-bench-2"

FieldNames = Mapping[str, Mapping[str, str]]
"""For each dataclass: old field name -> current field name."""
SCHEMA_2_FIELDS: FieldNames = {
    "ModelInfo": {"computed_by": "backend"},
    "RequestInfo": {"text_tokens_s": "text_tokens_per_s", "start_ms": "prebuffer_ms"},
    "AudioMetrics": {"later_text_wait_ms": "text_stall_ms"},
    "BatchRecord": {
        "talker_frames_s": "talker_frames_per_s",
        "predictor_frames_s": "predictor_frames_per_s",
        "codec_frames_s": "codec_frames_per_s",
        "total_frames_s": "total_frames_per_s",
    },
    "ReadBandwidth": {"bytes_s": "bytes_per_s"},
    "GemmThroughput": {"flops_s": "flops_per_s"},
}
"""Fields that were renamed in schema 3."""
_SCHEMA_1_ONLY: FieldNames = {
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
SCHEMA_1_FIELDS: FieldNames = {
    name: {**_SCHEMA_1_ONLY.get(name, {}), **SCHEMA_2_FIELDS.get(name, {})}
    for name in {**_SCHEMA_1_ONLY, **SCHEMA_2_FIELDS}
}
"""Fields that were renamed since schema 1."""


@dataclass(frozen=True, slots=True)
class Schema:
    """Differences of a schema from the current one: old names of record kinds and of fields.

    `optional_as_list`: `X | None` was written as a list of length 0 or 1.
    """

    kinds: Mapping[str, str] = field(default_factory=dict)
    fields: FieldNames = field(default_factory=dict)
    optional_as_list: bool = False


CURRENT = Schema()
SCHEMAS = {
    SCHEMA: CURRENT,
    SCHEMA_2: Schema(fields=SCHEMA_2_FIELDS),
    SCHEMA_1: Schema(
        kinds={"aside": "side_cost", "ceilings": "roofline", "turn": "engine_step"},
        fields=SCHEMA_1_FIELDS,
        optional_as_list=True,
    ),
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
        location = f"{path.name}:{number}"
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except json.JSONDecodeError as error:
            raise InputError(f"{location} is not JSON: {error}; use a file written by --records") from error
        schema = SCHEMAS.get(value.pop("schema", "")) if isinstance(value, dict) else None
        if schema is None:
            raise InputError(f"{location} is not a {SCHEMA} record; use a file written by --records")
        kind = value.pop("kind", "")
        kind = schema.kinds.get(kind, kind)
        if kind not in record_types:
            raise InputError(
                f"{location}: unknown record kind {kind!r}; expected one of {', '.join(sorted(record_types))}"
            )
        yield read(record_types[kind], value, location, schema=schema)


def read(record: type[_Record], value: object, location: str, *, schema: Schema = CURRENT) -> _Record:
    """Build a dataclass from JSON. `location`: start of the path in error messages (`InputError`)."""
    result = _read(record, value, location, schema)
    assert isinstance(result, record)
    return result


def _read(kind: object, value: object, location: str, schema: Schema) -> object:
    """`value` as `kind`: a dataclass, `X | None`, `tuple[X, ...]`, `dict[str, X]`, float, int, str or bool."""
    if isinstance(kind, type) and is_dataclass(kind):
        return _dataclass(kind, value, location, schema)
    if isinstance(kind, types.UnionType):
        return _optional(kind, value, location, schema)
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is tuple and arguments[1:] == (...,) and isinstance(value, list):
        return tuple(_read(arguments[0], item, f"{location}[{index}]", schema) for index, item in enumerate(value))
    if origin is dict and isinstance(value, dict):
        return {str(name): _read(arguments[1], item, f"{location}.{name}", schema) for name, item in value.items()}
    if kind is float and isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        return float(value)
    # `type(value) is kind`, because bool is a subclass of int
    if isinstance(kind, type) and type(value) is kind and kind in (str, int, bool):
        return value
    expected = kind.__name__ if isinstance(kind, type) and not isinstance(kind, types.GenericAlias) else str(kind)
    raise InputError(f"{location} must be {expected}, not {value!r}")


def _optional(kind: types.UnionType, value: object, location: str, schema: Schema) -> object:
    (value_type,) = (each for each in get_args(kind) if each is not types.NoneType)
    if schema.optional_as_list and isinstance(value, list) and len(value) <= 1:
        value = value[0] if value else None
    return None if value is None else _read(value_type, value, location, schema)


def _dataclass(kind: type, value: object, location: str, schema: Schema) -> object:
    if not isinstance(value, dict):
        raise InputError(f"{location} must be an object, not {value!r}")
    renamed = schema.fields.get(kind.__name__, {})
    value = {renamed.get(name, name): item for name, item in value.items()}
    field_types = get_type_hints(kind)
    names = [each.name for each in fields(kind)]
    for name in value:
        if name not in names:
            raise InputError(f"{location}.{name} is not a field of this record: another version of Legato wrote it")
    for each in fields(kind):
        if each.name not in value and each.default is MISSING:
            raise InputError(f"{location}.{each.name} is missing: another version of Legato wrote it")
    arguments = {
        name: _read(field_types[name], value[name], f"{location}.{name}", schema) for name in names if name in value
    }
    try:
        return kind(**arguments)
    except ValueError as error:
        raise InputError(f"{location}: {error}") from error
