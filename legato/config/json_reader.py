"""Typed access to JSON files. Values are required and checked; errors contain the full path of the key.

The files may come from anyone: their size, the sizes in them, and what errors quote of them are bounded.
"""

from __future__ import annotations

import json
import reprlib
from collections.abc import Iterable
from pathlib import Path

from legato.errors import CheckpointError, ConfigError

MAX_FILE_BYTES = 64 * 2**20
"""Largest text file of a checkpoint that is read. The largest of the official ones, the vocabulary, has 2.8 MB."""
MAX_INTEGER = 2**31 - 1
"""Largest integer in a checkpoint's JSON: sizes and ids fit into 32 bits."""
MAX_LIST = 32
"""Most integers in a list of sizes."""

_QUOTE = reprlib.Repr()
_QUOTE.maxstring = _QUOTE.maxother = 80


def quote(value: object) -> str:
    """The `repr` of a value in a message, shortened if it is long or deeply nested."""
    return _QUOTE.repr(value)


def read_text_file(path: Path) -> str:
    """Read a UTF-8 text file of a checkpoint. `ConfigError` if it cannot be read, is too large or is not UTF-8."""
    try:
        size = path.stat().st_size
        if size > MAX_FILE_BYTES:
            raise ConfigError(f"{path} has {size} bytes, and the limit is {MAX_FILE_BYTES}", field=path.name)
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}", field=path.name) from error
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{path} is not UTF-8 text (byte {error.start}): download it again", field=path.name
        ) from error


def parse_json_file(path: Path) -> object:
    """Read any JSON value from `path`. Raises `ConfigError` with the file's path if that fails."""
    text = read_text_file(path)
    try:
        value: object = json.loads(text)
    except RecursionError as error:
        raise ConfigError(f"{path} is not valid JSON: it is nested too deeply", field=path.name) from error
    except ValueError as error:  # also for numbers of more than 4,300 digits
        raise ConfigError(f"{path} is not valid JSON: {error}", field=path.name) from error
    return value


def read_json(path: Path, purpose: str) -> Section:
    """Read the JSON object in `path`.

    Raises `CheckpointError` with `purpose` if the file is missing and `ConfigError` if it is not a JSON object.
    """
    if not path.is_file():
        raise CheckpointError(f"{path} is missing: {purpose}", field=path.name)
    value = parse_json_file(path)
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

    def integer(self, key: str, *, at_least: int = 1, at_most: int = MAX_INTEGER) -> int:
        """An integer. Floats such as 3.0 and booleans are errors."""
        value = self._get(key)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self._wrong(key, "an integer", value)
        if value < at_least:
            raise self._wrong(key, f"at least {at_least}", value)
        if value > at_most:
            raise self._wrong(key, f"at most {at_most}", value)
        return value

    def number(self, key: str, *, at_least: float = 0.0, at_most: float = 1e30) -> float:
        """A finite number from `at_least` to `at_most`."""
        value = self._get(key)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < float("inf"):
            raise self._wrong(key, "a finite number, 0 or more", value)
        if not at_least <= value <= at_most:
            raise self._wrong(key, f"a number from {at_least:g} to {at_most:g}", value)
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
        if not _is_text(value):
            raise self._wrong(key, "a non-empty string", value)
        return str(value)

    def integers(self, key: str) -> tuple[int, ...]:
        """A non-empty list of at most `MAX_LIST` integers, each 1 or more."""
        value = self._get(key)
        if not isinstance(value, list) or not 0 < len(value) <= MAX_LIST:
            raise self._wrong(key, f"a non-empty list of at most {MAX_LIST} integers", value)
        numbers: list[int] = []
        for item in value:
            if isinstance(item, bool) or not isinstance(item, int) or not 1 <= item <= MAX_INTEGER:
                raise self._wrong(key, f"a list of integers from 1 to {MAX_INTEGER}", value)
            numbers.append(item)
        return tuple(numbers)

    def strings(self, key: str) -> tuple[str, ...]:
        """A non-empty list of distinct non-empty strings."""
        value = self._get(key)
        if not isinstance(value, list) or not value or not all(map(_is_text, value)):
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
            if not _is_text(name):
                raise section._wrong(name, "named by a non-empty string", name)
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
                f"{self._path(key)} is {quote(value)}, which is not supported: {reason}", field=self._path(key)
            )

    def error(self, key: str, expected: str) -> ConfigError:
        """The error for a value that is inconsistent with other values. The caller raises it."""
        return self._wrong(key, expected, self._values.get(key))

    def _get(self, key: str) -> object:
        if key not in self._values or self._values[key] is None:
            raise ConfigError(f"{self._path(key)} is missing and has no safe default", field=self._path(key))
        return self._values[key]

    def _wrong(self, key: str, expected: str, value: object) -> ConfigError:
        return ConfigError(f"{self._path(key)} must be {expected}, not {quote(value)}", field=self._path(key))

    def _path(self, key: str) -> str:
        name = key if len(key) <= 80 and _is_text(key) else quote(key)
        return f"{self.location}: {name}" if self.location.endswith(".json") else f"{self.location}.{name}"


def _is_text(value: object) -> bool:
    """A non-empty string without halves of surrogate pairs, which no output could encode."""
    return isinstance(value, str) and value != "" and not any("\ud800" <= character <= "\udfff" for character in value)
