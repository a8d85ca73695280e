"""Typed access to the fields of a JSON message. A wrong type or value is an `InputError` that names the field.

A `Fields` belongs to one message. It remembers which fields were read, so that the others can be reported as ignored.
"""

from __future__ import annotations

import json
import math

from legato.errors import InputError
from legato.server.json_body import parse_json

MAX_SHOWN = 80
"""Characters of a wrong value that an error message quotes."""


class Fields:
    """One JSON object. `null` counts as absent. `prefix`: path of the object, for field names in errors."""

    def __init__(self, values: dict[str, object], prefix: str = "") -> None:
        self._values = values
        self._prefix = prefix
        self._read: set[str] = set()

    def has(self, name: str) -> bool:
        """True if the field is present and not null."""
        self._read.add(name)
        return self._values.get(name) is not None

    def text(self, name: str, default: str = "", *, limit: int = 4096) -> str:
        """A string of at most `limit` characters."""
        if not self.has(name):
            return default
        value = self._values[name]
        if not isinstance(value, str):
            raise self._wrong(name, "a string", value)
        if len(value) > limit:
            raise InputError(
                f"{self._path(name)} has {len(value)} characters, and the limit is {limit}", field=self._path(name)
            )
        return value

    def choice(self, name: str, allowed: tuple[str, ...], default: str) -> str:
        """One of the `allowed` strings, case-insensitive."""
        value = self.text(name, default)
        if value.lower() not in allowed:
            raise self._wrong(name, f"one of {', '.join(allowed)}", value)
        return value.lower()

    def flag(self, name: str, default: bool = False) -> bool:
        """True or false."""
        if not self.has(name):
            return default
        value = self._values[name]
        if not isinstance(value, bool):
            raise self._wrong(name, "true or false", value)
        return value

    def integer(self, name: str, default: int, *, low: int, high: int) -> int:
        """An integer in low..high. 24000.0 is accepted: JSON does not distinguish it, and some encoders write it."""
        if not self.has(name):
            return default
        value = self._values[name]
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise self._wrong(name, f"an integer from {low} to {high}", value)
        return value

    def one_of(self, name: str, allowed: tuple[int, ...], default: int) -> int:
        """One of the `allowed` integers."""
        value = self.integer(name, default, low=-(2**31), high=2**31)
        if value not in allowed:
            raise self._wrong(name, f"one of {', '.join(map(str, allowed))}", value)
        return value

    def number(self, name: str, default: float, *, low: float, high: float) -> float:
        """A finite number in low..high."""
        if not self.has(name):
            return default
        value = self._values[name]
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
            raise self._wrong(name, f"a number from {low:g} to {high:g}", value)
        return float(value)

    def section(self, name: str) -> Fields:
        """A nested object; an empty one if absent."""
        value = self._values.get(name, {}) if self.has(name) else {}
        if not isinstance(value, dict):
            raise self._wrong(name, "an object", value)
        return Fields(value, self._path(name))

    def refuse(self, name: str, reason: str, *, unless: tuple[object, ...] = ()) -> None:
        """Reject a known field that is not supported, unless its value is one of the harmless values `unless`."""
        if self.has(name) and self._values[name] not in unless:
            raise InputError(f"{self._path(name)} is not supported: {reason}", field=self._path(name))

    @property
    def values(self) -> dict[str, object]:
        """The whole object, for validation with a pydantic model."""
        return self._values

    @property
    def unread(self) -> list[str]:
        """Paths of the fields that were not read."""
        return [self._path(name) for name in self._values if name not in self._read]

    def _wrong(self, name: str, expected: str, value: object) -> InputError:
        shown = repr(value)
        shown = shown if len(shown) <= MAX_SHOWN else shown[:MAX_SHOWN] + "..."
        return InputError(f"{self._path(name)} must be {expected}, not {shown}", field=self._path(name))

    def _path(self, name: str) -> str:
        name = name if len(name) <= MAX_SHOWN else name[:MAX_SHOWN] + "..."
        return f"{self._prefix}.{name}" if self._prefix else name


def read_message(text: str, *, limit_bytes: int) -> Fields:
    """Parse the JSON object in a text frame."""
    data = text.encode("utf-8", "surrogatepass")
    if len(data) > limit_bytes:
        raise InputError(f"a message has {len(data)} bytes, and the limit is {limit_bytes}")
    try:
        value = parse_json(data)
    except ValueError as error:
        raise InputError(f"a message must be one JSON object: {str(error)[:MAX_SHOWN]}") from None
    if not isinstance(value, dict):
        raise InputError(f"a message must be one JSON object, not {type(value).__name__}")
    return Fields(value)


def to_json(message: dict[str, object]) -> str:
    """Serialize a message. `ValueError` for a number that JSON cannot represent."""
    for value in message.values():
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"{value} cannot be sent as JSON")
    return json.dumps(message, ensure_ascii=False, separators=(",", ":"))
