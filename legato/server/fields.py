"""Typed reading of one JSON message from a client: what is wrong is an `InputError` that names the field.

Owns nothing beyond one message, and remembers which fields were read, so that the others can be named as ignored. Knows
no message by name.
"""

from __future__ import annotations

import json
import math

from legato.errors import InputError

MAX_SHOWN = 80
"""Characters of a wrong value that an error repeats."""


class Fields:
    """The object of one message. `null` counts as absent. `place` is put before field names in errors."""

    def __init__(self, values: dict[str, object], place: str = "") -> None:
        self._values = values
        self._place = place
        self._read: set[str] = set()

    def has(self, name: str) -> bool:
        """True if the field is there and not null."""
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
        """One of a few words, in any case."""
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
        """A whole number in low..high; 24000.0 counts as one, because JavaScript writes no other way to say it."""
        if not self.has(name):
            return default
        value = self._values[name]
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise self._wrong(name, f"a whole number from {low} to {high}", value)
        return value

    def one_of(self, name: str, allowed: tuple[int, ...], default: int) -> int:
        """One of a few whole numbers."""
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

    def integers(self, name: str, *, low: int, high: int, longest: int) -> tuple[int, ...]:
        """A whole number, or a list of up to `longest`; empty where absent."""
        if not self.has(name):
            return ()
        value = self._values[name]
        items = value if isinstance(value, list) else [value]
        good = all(isinstance(each, int) and not isinstance(each, bool) and low <= each <= high for each in items)
        if not items or len(items) > longest or not good:
            raise self._wrong(name, f"1 to {longest} whole numbers from {low} to {high}", value)
        return tuple(items)

    def section(self, name: str) -> Fields:
        """A nested object; an empty one where absent."""
        value = self._values.get(name, {}) if self.has(name) else {}
        if not isinstance(value, dict):
            raise self._wrong(name, "an object", value)
        return Fields(value, self._path(name))

    def refuse(self, name: str, reason: str, *, unless: tuple[object, ...] = ()) -> None:
        """Refuse by name a field that is known but cannot be honoured, unless its value asks for nothing."""
        if self.has(name) and self._values[name] not in unless:
            raise InputError(f"{self._path(name)} is not supported: {reason}", field=self._path(name))

    @property
    def values(self) -> dict[str, object]:
        """The whole object, for a reader that checks it at once."""
        return self._values

    @property
    def unread(self) -> list[str]:
        """Fields that nobody asked for, with their place."""
        return [self._path(name) for name in self._values if name not in self._read]

    def _wrong(self, name: str, expected: str, value: object) -> InputError:
        shown = repr(value)
        shown = shown if len(shown) <= MAX_SHOWN else shown[:MAX_SHOWN] + "..."
        return InputError(f"{self._path(name)} must be {expected}, not {shown}", field=self._path(name))

    def _path(self, name: str) -> str:
        name = name if len(name) <= MAX_SHOWN else name[:MAX_SHOWN] + "..."
        return f"{self._place}.{name}" if self._place else name


def read_message(text: str, *, limit_bytes: int) -> Fields:
    """The JSON object in one text frame of a socket."""
    size = len(text.encode("utf-8", "surrogatepass"))
    if size > limit_bytes:
        raise InputError(f"a message has {size} bytes, and the limit is {limit_bytes}")
    try:
        value = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise InputError(f"a message must be one JSON object: {str(error)[:MAX_SHOWN]}") from None
    if not isinstance(value, dict):
        raise InputError(f"a message must be one JSON object, not {type(value).__name__}")
    return Fields(value)


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


def to_json(message: dict[str, object]) -> str:
    """One message as the text of a frame. Numbers are finite by construction."""
    for value in message.values():
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"a message would carry {value}")
    return json.dumps(message, ensure_ascii=False, separators=(",", ":"))
