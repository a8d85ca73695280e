"""Parse JSON with limits on nesting and on the number of elements, so that parsing costs little time and memory.

Python's parser holds the interpreter's lock until it is done. A body of a few megabytes with millions of empty lists
would stop the event loop, and the engine's thread, for seconds. The cheap counts below come first: no document passes
them that takes longer than some 50 ms. They use numpy, which releases the lock while it counts.
"""

from __future__ import annotations

import json

import numpy as np

MAX_ELEMENTS = 100_000
"""Commas and opening brackets in a document, in strings, too: an upper bound of the values in it."""
MAX_ESCAPES = 1_000_000
"""Backslashes in a document. Some encoders escape each slash of a base64 string."""
MAX_DEPTH = 32
"""Nested lists and objects."""
_COUNT_BYTES = 2**18
"""Bytes counted at a time, so that intermediate results stay in the cache."""


def parse_json(data: bytes) -> object:
    """The value in `data`. Raises `ValueError` with a sentence for clients."""
    escapes = _count(data, b"\\")
    if _count(data, b",[{") > MAX_ELEMENTS:
        raise ValueError(f"it has more than {MAX_ELEMENTS:,} elements")
    if escapes > MAX_ESCAPES:
        raise ValueError(f"it has more than {MAX_ESCAPES:,} escaped characters")
    try:
        value: object = json.loads(data, parse_constant=_reject_constant, parse_int=_parse_int)
    except json.JSONDecodeError as error:
        raise ValueError(f"{error.msg} at line {error.lineno}, column {error.colno}") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"it is not {error.encoding.upper()} text: byte {error.start} is invalid") from error
    except RecursionError as error:
        raise ValueError(f"it has more than {MAX_DEPTH} nested lists or objects") from error
    # An escaped lone surrogate parses but cannot be encoded later.
    _check(value, surrogates=escapes > 0 and (b"\\ud" in data or b"\\uD" in data))
    return value


def _count(data: bytes, characters: bytes) -> int:
    """The number of bytes of `data` that are one of the ASCII `characters`."""
    count = 0
    for start in range(0, len(data), _COUNT_BYTES):
        block = np.frombuffer(data, np.uint8, min(_COUNT_BYTES, len(data) - start), start)
        count += sum(int(np.count_nonzero(block == character)) for character in characters)
    return count


def _check(value: object, *, surrogates: bool) -> None:
    """`ValueError` if the value is nested too deeply or (with `surrogates`) has half a surrogate pair."""
    level: list[object] = [value]
    for depth in range(MAX_DEPTH + 1):
        if depth == MAX_DEPTH and any(isinstance(each, dict | list) for each in level):
            break
        inner: list[object] = []
        for each in level:
            if isinstance(each, dict):
                inner.extend(each.values())
                if surrogates:
                    inner.extend(each)
            elif isinstance(each, list):
                inner.extend(each)
            elif surrogates and isinstance(each, str):
                _check_surrogates(each)
        if not inner:
            return
        level = inner
    raise ValueError(f"it has more than {MAX_DEPTH} nested lists or objects")


def _check_surrogates(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError("a string has half a surrogate pair") from error


def _parse_int(digits: str) -> int:
    if len(digits) > 64:
        raise ValueError("a number has more than 64 digits")
    return int(digits)


def _reject_constant(name: str) -> object:
    raise ValueError(f"{name} is not a JSON number")
