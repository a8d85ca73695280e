"""Typed reading of JSON that others wrote: each value is required, checked, and named by its full path in errors.

Owns nothing beyond one call. Knows no key by name: `checkpoint.py` does.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from legato.errors import CheckpointError, ConfigError


def read_json(path: Path, purpose: str) -> Section:
    """The object in `path`. Without the file: `CheckpointError`, saying what it is for; bad JSON: `ConfigError`."""
    if not path.is_file():
        raise CheckpointError(f"{path} is missing: {purpose}", field=path.name)
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid JSON: {error}", field=path.name) from error
    if not isinstance(value, dict):
        raise ConfigError(f"{path} must hold a JSON object, not {type(value).__name__}", field=path.name)
    return Section(value, path.name)


class Section:
    """One JSON object and its place, for messages such as ``config.json: talker_config.hidden_size``."""

    def __init__(self, values: dict[str, object], place: str) -> None:
        self._values = values
        self.place = place

    def has(self, key: str) -> bool:
        """True if the key is there and not null."""
        return self._values.get(key) is not None

    def integer(self, key: str, *, at_least: int = 1) -> int:
        """A whole number (a float such as 3.0 or a bool is refused)."""
        value = self._get(key)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self._wrong(key, "a whole number", value)
        if value < at_least:
            raise self._wrong(key, f"at least {at_least}", value)
        return value

    def number(self, key: str) -> float:
        """A finite number above or equal to 0."""
        value = self._get(key)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < float("inf"):
            raise self._wrong(key, "a finite number, 0 or more", value)
        return float(value)

    def boolean(self, key: str) -> bool:
        """True or false."""
        value = self._get(key)
        if not isinstance(value, bool):
            raise self._wrong(key, "true or false", value)
        return value

    def string(self, key: str) -> str:
        """A non-empty string."""
        value = self._get(key)
        if not isinstance(value, str) or not value:
            raise self._wrong(key, "a non-empty string", value)
        return value

    def integers(self, key: str) -> tuple[int, ...]:
        """A non-empty list of whole numbers, each 1 or more."""
        value = self._get(key)
        if not isinstance(value, list) or not value:
            raise self._wrong(key, "a non-empty list of whole numbers", value)
        numbers: list[int] = []
        for item in value:
            if isinstance(item, bool) or not isinstance(item, int) or item < 1:
                raise self._wrong(key, "a list of whole numbers, each 1 or more", value)
            numbers.append(item)
        return tuple(numbers)

    def strings(self, key: str) -> tuple[str, ...]:
        """A non-empty list of distinct non-empty strings."""
        value = self._get(key)
        if not isinstance(value, list) or not value or not all(isinstance(item, str) and item for item in value):
            raise self._wrong(key, "a non-empty list of strings", value)
        if len(set(value)) != len(value):
            raise self._wrong(key, "a list without repeats", value)
        return tuple(value)

    def section(self, key: str) -> Section:
        """A nested object."""
        value = self._get(key)
        if not isinstance(value, dict):
            raise self._wrong(key, "an object", value)
        return Section(value, self._path(key))

    def ids(self, key: str, *, below: int) -> dict[str, int]:
        """A table of lower-cased names to ids in 0..below-1. Two names that differ only in case are refused."""
        section = self.section(key)
        table: dict[str, int] = {}
        for name in section._values:
            number = section.integer(name, at_least=0)
            if number >= below:
                raise section._wrong(name, f"an id below {below}", number)
            if name.lower() in table:
                raise section._wrong(name, "a name that is unique whatever its case", name)
            table[name.lower()] = number
        return table

    def names(self) -> Iterable[str]:
        """The names of a table."""
        return self._values.keys()

    def value(self, key: str) -> object:
        """The raw value, None where absent: for tables whose values have several types."""
        return self._values.get(key)

    def expect(self, key: str, allowed: Iterable[object], reason: str) -> None:
        """Refuse, by name, a value that would change the computation. An absent key or null is accepted."""
        value = self._values.get(key)
        if value is not None and value not in tuple(allowed):
            raise ConfigError(
                f"{self._path(key)} is {value!r}, which this engine does not compute: {reason}", field=self._path(key)
            )

    def fail(self, key: str, expected: str) -> ConfigError:
        """The error for a value that is wrong only beside others."""
        return self._wrong(key, expected, self._values.get(key))

    def _get(self, key: str) -> object:
        if key not in self._values or self._values[key] is None:
            raise ConfigError(
                f"{self._path(key)} is missing, and there is no safe default for it", field=self._path(key)
            )
        return self._values[key]

    def _wrong(self, key: str, expected: str, value: object) -> ConfigError:
        return ConfigError(f"{self._path(key)} must be {expected}, not {value!r}", field=self._path(key))

    def _path(self, key: str) -> str:
        return f"{self.place}: {key}" if self.place.endswith(".json") else f"{self.place}.{key}"
