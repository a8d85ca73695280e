"""All recordings by name, their files, and the comparison of a recording with its file."""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable
from pathlib import Path

from tests.frozen import codes, over_http, over_sockets, over_wyoming, surface
from tests.frozen.subjects import Subjects

FOLDER = Path(__file__).with_name("recorded")
HOW_TO_UPDATE = "if the change is intended: python -m tests.frozen.record"
TOLERANCE = 2e-4
"""Samples and seconds may differ by this much between CPUs."""

RECORDINGS: dict[str, Callable[[Subjects], object]] = {
    "codes": codes.take,
    "embedded": codes.take_embedded,
    "commands": surface.take_commands,
    "names": surface.take_names,
    "openapi": surface.take_openapi,
    "openapi_names": surface.take_openapi_names,
    "http": over_http.take,
    "http_words": over_http.take_words,
    "speech_socket": over_sockets.take_stream,
    "realtime_socket": over_sockets.take_realtime,
    "wyoming": over_wyoming.take,
}


def path_of(name: str) -> Path:
    """The file of a recording."""
    return FOLDER / f"{name}.json"


def recorded(name: str) -> object:
    """The contents of the file."""
    found: object = json.loads(path_of(name).read_text(encoding="utf-8"))
    return found


def record_now(name: str, subjects: Subjects) -> object:
    """A new recording, converted to JSON types."""
    value: object = json.loads(json.dumps(RECORDINGS[name](subjects)))
    return value


def agree(one: object, other: object) -> bool:
    """Equality, with a tolerance for floats."""
    if isinstance(one, float) and isinstance(other, float):
        return abs(one - other) <= TOLERANCE
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(agree(one[name], other[name]) for name in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(agree, one, other))
    return type(one) is type(other) and one == other


def text_of(value: object) -> str:
    """`value` in the format of the files: JSON with sorted keys, one line per list of plain values."""
    return _lines(value, "") + "\n"


def difference(old: object, new: object) -> str:
    """A diff of the two."""
    lines = difflib.unified_diff(
        text_of(old).splitlines(), text_of(new).splitlines(), "recorded", "now", n=2, lineterm=""
    )
    return "\n".join(lines)


def _lines(value: object, indent: str) -> str:
    inner = indent + " "
    flat = json.dumps(value, ensure_ascii=False, sort_keys=True)
    simple = isinstance(value, list) and not any(isinstance(each, list | dict) for each in value)
    if simple or len(indent) + len(flat) <= 110 or not isinstance(value, list | dict):
        return flat
    if isinstance(value, list):
        return "[\n" + ",\n".join(inner + _lines(each, inner) for each in value) + f"\n{indent}]"
    items = (f"{inner}{json.dumps(name)}: {_lines(value[name], inner)}" for name in sorted(value))
    return "{\n" + ",\n".join(items) + f"\n{indent}}}"
