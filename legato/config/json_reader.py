"""Typed access to JSON files. Values are required and checked; errors contain the full path of the key."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from legato.errors import CheckpointError, ConfigError


def read_json(path: Path, purpose: str) -> Section:
    """Read the JSON object in `path`.

    Raises `CheckpointError` with `purpose` if the file is missing and `ConfigError` if it is not a JSON object.
    """
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
    """One JSON object and its location, for messages such as ``config.json: talker_config.hidden_size``."""

    def __init__(self, values: dict[str, object], location: str) -> None:
        self._values = values
        self.location = location

    def has(self, key: str) -> bool:
        """True if the key is present and not null."""
        return self._values.get(key) is not None

    def values(self) -> dict[str, object]:
        """The whole object, unchecked."""
        return self._values

    def integer(self, key: str, *, at_least: int = 1) -> int:
        """An integer. Floats such as 3.0 and booleans are errors."""
        value = self._get(key)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self._wrong(key, "an integer", value)
        if value < at_least:
            raise self._wrong(key, f"at least {at_least}", value)
        return value

    def number(self, key: str) -> float:
        """A finite number, 0 or more."""
        value = self._get(key)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < float("inf"):
            raise self._wrong(key, "a finite number, 0 or more", value)
        return float(value)

    def boolean(self, key: str) -> bool:
        """A boolean."""
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
        """A non-empty list of integers, each 1 or more."""
        value = self._get(key)
        if not isinstance(value, list) or not value:
            raise self._wrong(key, "a non-empty list of integers", value)
        numbers: list[int] = []
        for item in value:
            if isinstance(item, bool) or not isinstance(item, int) or item < 1:
                raise self._wrong(key, "a list of integers, each 1 or more", value)
            numbers.append(item)
        return tuple(numbers)

    def strings(self, key: str) -> tuple[str, ...]:
        """A non-empty list of distinct non-empty strings."""
        value = self._get(key)
        if not isinstance(value, list) or not value or not all(isinstance(item, str) and item for item in value):
            raise self._wrong(key, "a non-empty list of strings", value)
        if len(set(value)) != len(value):
            raise self._wrong(key, "a list without duplicates", value)
        return tuple(value)

    def section(self, key: str) -> Section:
        """A nested object."""
        value = self._get(key)
        if not isinstance(value, dict):
            raise self._wrong(key, "an object", value)
        return Section(value, self._path(key))

    def ids(self, key: str, *, below: int) -> dict[str, int]:
        """A mapping of lower-cased names to ids in 0..below-1. Names that differ only in case are an error."""
        section = self.section(key)
        table: dict[str, int] = {}
        for name in section._values:
            number = section.integer(name, at_least=0)
            if number >= below:
                raise section._wrong(name, f"an id below {below}", number)
            if name.lower() in table:
                raise section._wrong(name, "unique when case is ignored", name)
            table[name.lower()] = number
        return table

    def names(self) -> Iterable[str]:
        """All keys of the object."""
        return self._values.keys()

    def value(self, key: str) -> object:
        """The raw value, `None` if absent. For values that can have several types."""
        return self._values.get(key)

    def expect(self, key: str, allowed: Iterable[object], reason: str) -> None:
        """Raise `ConfigError` unless the value is allowed, null or absent. For switches that change the computation."""
        value = self._values.get(key)
        if value is not None and value not in tuple(allowed):
            raise ConfigError(
                f"{self._path(key)} is {value!r}, which is not supported: {reason}", field=self._path(key)
            )

    def error(self, key: str, expected: str) -> ConfigError:
        """The error for a value that is inconsistent with other values. The caller raises it."""
        return self._wrong(key, expected, self._values.get(key))

    def _get(self, key: str) -> object:
        if key not in self._values or self._values[key] is None:
            raise ConfigError(f"{self._path(key)} is missing and has no safe default", field=self._path(key))
        return self._values[key]

    def _wrong(self, key: str, expected: str, value: object) -> ConfigError:
        return ConfigError(f"{self._path(key)} must be {expected}, not {value!r}", field=self._path(key))

    def _path(self, key: str) -> str:
        return f"{self.location}: {key}" if self.location.endswith(".json") else f"{self.location}.{key}"
