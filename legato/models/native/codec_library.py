"""`codec.c` and `attention.c` as a library of this process, and their structs. Knows no module."""

from __future__ import annotations

from collections.abc import Callable
from ctypes import Structure, c_float, c_int64, c_void_p
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from legato.models.native.library import HERE, Missing, compiled

SOURCES = tuple(Path(__file__).with_name(name) for name in ("codec.c", "codec_tiles.c", "attention.c"))
HEADERS = tuple(Path(__file__).with_name(name) for name in ("codec.h", "tiles.h", "lanes.h"))

AS_IT_IS, SNAKE, NORM, GELU, GATED = range(5)
"""What a product does to its input first."""


class Kernel(Structure):
    """The packed weights of a product."""

    _fields_ = (
        *((name, c_void_p) for name in ("weight", "bias")),
        *((name, c_int64) for name in ("taps", "width", "dilation", "n", "half", "tile_steps")),
    )


class Call(Structure):
    """What one product reads and writes."""

    _fields_ = (
        *((name, c_void_p) for name in ("x", "past", "joined", "kept", "lengths", "first", "second", "turn", "gain")),
        *((name, c_void_p) for name in ("scale", "plus", "y")),
        *((name, c_int64) for name in ("batch", "positions", "keep", "pitch", "before", "threads")),
        ("eps", c_float),
    )


class Attention(Structure):
    """What the attention of one layer reads and writes."""

    _fields_ = (
        *((name, c_void_p) for name in ("qkv", "cos", "sin", "mask", "past_keys", "past_values", "keys", "values")),
        *((name, c_void_p) for name in ("kept_keys", "kept_values", "lengths", "y", "scores")),
        *((name, c_int64) for name in ("batch", "count", "past", "heads", "kv_heads", "d", "half", "threads")),
    )


@dataclass(frozen=True, slots=True)
class CodecLibrary:
    """The functions of both files. They let other Python threads run meanwhile."""

    convolve: Callable[..., object]
    depthwise: Callable[..., object]
    attend: Callable[..., object]
    rotation: Callable[..., object]
    panel: int
    """Outputs that are packed together."""
    tiles: bool
    """Whether products of bfloat16 go through matrix tiles."""


@lru_cache
def codec_library(cpu: str = HERE) -> CodecLibrary | Missing:
    """The library of this process, compiled first where it is not in the cache."""
    loaded = compiled("codec", SOURCES, HEADERS, cpu)
    if isinstance(loaded, Missing):
        return loaded
    functions = (loaded.legato_convolve, loaded.legato_depthwise, loaded.legato_attend, loaded.legato_rotation)
    for function, pointers, numbers in zip(functions, (2, 6, 1, 4), (0, 3, 0, 2), strict=True):
        function.restype = None
        function.argtypes = [c_void_p] * pointers + [c_int64] * numbers
    loaded.legato_tiles.restype = c_int64
    return CodecLibrary(*functions, loaded.legato_panel(), bool(loaded.legato_tiles()))
