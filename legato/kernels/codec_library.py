"""The C kernels of the codec decoder (`codec.c`, `attention.c`) as a library of this process, and their structs.

The functions take addresses of tensors that the caller keeps alive.
"""

from __future__ import annotations

from collections.abc import Callable
from ctypes import Structure, c_float, c_int64, c_void_p
from dataclasses import dataclass
from functools import lru_cache

from legato.kernels.build import THIS_CPU, Unavailable, load_library

FUNCTIONS = (
    "legato_convolve",
    "legato_depthwise",
    "legato_attend",
    "legato_rotation",
    "legato_tiles",
    "legato_panel",
)
IDENTITY, SNAKE, NORM, GELU, GATED = range(5)
"""Functions that a product can apply to its input first, in the order of the enum in `codec.h`."""


class Kernel(Structure):
    """The packed weights of a convolution or linear layer."""

    _fields_ = (
        ("weight", c_void_p),
        ("bias", c_void_p),
        ("taps", c_int64),
        ("width", c_int64),
        ("dilation", c_int64),
        ("n", c_int64),
        ("half", c_int64),
        ("tile_steps", c_int64),
    )


class Call(Structure):
    """Inputs, outputs and scratch memory of one product."""

    _fields_ = (
        ("x", c_void_p),
        ("past", c_void_p),
        ("joined", c_void_p),
        ("kept", c_void_p),
        ("lengths", c_void_p),
        ("first", c_void_p),
        ("second", c_void_p),
        ("turn", c_void_p),
        ("gain", c_void_p),
        ("scale", c_void_p),
        ("plus", c_void_p),
        ("y", c_void_p),
        ("batch", c_int64),
        ("positions", c_int64),
        ("keep", c_int64),
        ("pitch", c_int64),
        ("before", c_int64),
        ("threads", c_int64),
        ("eps", c_float),
    )


class Attention(Structure):
    """Inputs, outputs and scratch memory of the attention of one layer."""

    _fields_ = (
        ("qkv", c_void_p),
        ("cos", c_void_p),
        ("sin", c_void_p),
        ("mask", c_void_p),
        ("past_keys", c_void_p),
        ("past_values", c_void_p),
        ("keys", c_void_p),
        ("values", c_void_p),
        ("kept_keys", c_void_p),
        ("kept_values", c_void_p),
        ("lengths", c_void_p),
        ("y", c_void_p),
        ("scores", c_void_p),
        ("batch", c_int64),
        ("count", c_int64),
        ("past", c_int64),
        ("heads", c_int64),
        ("kv_heads", c_int64),
        ("d", c_int64),
        ("half", c_int64),
        ("threads", c_int64),
    )


@dataclass(frozen=True, slots=True)
class CodecLibrary:
    """The exported functions. ctypes releases the GIL while they run."""

    convolve: Callable[..., object]
    depthwise: Callable[..., object]
    attend: Callable[..., object]
    rope_tables: Callable[..., object]
    panel: int
    """Outputs that are packed together."""
    amx: bool
    """Whether bfloat16 convolutions use AMX tiles."""


@lru_cache
def codec_library(cpu: str = THIS_CPU, *macros: str) -> CodecLibrary | Unavailable:
    """The library of this process; compiled first if the cache does not hold it. Tests define `macros`."""
    loaded = load_library(
        cpu,
        macros,
        structs=(Kernel, Call, Attention),
        layout_tables=("legato_codec_layout", "legato_attention_layout"),
    )
    if isinstance(loaded, Unavailable):
        return loaded
    missing = next((name for name in FUNCTIONS if not hasattr(loaded, name)), None)
    if missing is not None:
        return Unavailable(f"the library lacks a function: {missing}")
    for function, pointers, numbers in (
        (loaded.legato_convolve, 2, 0),
        (loaded.legato_depthwise, 6, 3),
        (loaded.legato_attend, 1, 0),
        (loaded.legato_rotation, 4, 2),
    ):
        function.restype = None
        function.argtypes = [c_void_p] * pointers + [c_int64] * numbers
    loaded.legato_tiles.restype = c_int64
    return CodecLibrary(
        convolve=loaded.legato_convolve,
        depthwise=loaded.legato_depthwise,
        attend=loaded.legato_attend,
        rope_tables=loaded.legato_rotation,
        panel=loaded.legato_panel(),
        amx=bool(loaded.legato_tiles()),
    )
