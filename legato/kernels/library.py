"""The C kernels of the language model (`layers.c`, `frame.c` and the linear layers) as a library of this process.

The functions take addresses of tensors that the caller keeps alive; see `structs.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from ctypes import CDLL, addressof, byref, c_float, c_int8, c_int32, c_int64, create_string_buffer
from dataclasses import dataclass
from functools import lru_cache

from legato.kernels import structs
from legato.kernels.build import THIS_CPU, Unavailable, load_library

FUNCTIONS = ("legato_layers", "legato_map", "legato_prepared", "legato_frame", "legato_draw", "legato_tiles")


@dataclass(frozen=True, slots=True)
class Library:
    """The exported functions. ctypes releases the GIL while they run."""

    layers: Callable[..., object]
    map: Callable[..., object]
    prepared: Callable[..., int]
    frame: Callable[..., int]
    draw: Callable[..., int]
    amx: bool
    """Whether int8 linears with several rows use AMX tiles."""


def kernels_note(*, amx: bool) -> str:
    """Which kernels run, for logs and records."""
    return "native kernels (AMX)" if amx else "native kernels"


def self_test(loaded: CDLL) -> str | None:
    """Multiply a small int8 linear and compare with exact sums; None if it is right, else the difference.

    So a library that raises or computes something else is found when it is loaded, and not by the first stream.
    """
    K, N, LEVELS = 64, 3, 127 * 128  # as in linear.h
    x = [(7 * i) % 23 - 11.0 for i in range(K)]
    weight = [(5 * i) % 17 - 8 for i in range(N * K)]
    rows = [weight[n * K : (n + 1) * K] for n in range(N)]
    values, scales, sums = (c_int8 * len(weight))(*weight), (c_float * N)(0.5, 0.5, 0.5), (c_int32 * N)(*map(sum, rows))
    args = structs.Linear(addressof(values), addressof(scales), addressof(sums), N, K, structs.INT8, 0)
    inputs, outputs, input_scale = (c_float * K)(*x), (c_float * N)(), c_float()
    try:
        prepared = create_string_buffer(int(loaded.legato_prepared(byref(args), c_int64(1))))
        loaded.legato_map(byref(args), c_int64(1), c_int64(1), inputs, outputs, byref(prepared), byref(input_scale))
    except Exception as error:  # boundary: whatever the library raises, PyTorch computes instead
        return f"{type(error).__name__}: {error}"
    peak = max(map(abs, x))
    quantized = [round(value * LEVELS / peak) for value in x]
    exact = [0.5 * peak / LEVELS * sum(a * b for a, b in zip(quantized, row, strict=True)) for row in rows]
    if any(abs(got - wanted) > 1e-4 * abs(wanted) + 1e-4 for got, wanted in zip(outputs, exact, strict=True)):
        return f"an int8 linear gave {list(outputs)} instead of {exact}"
    return None


@lru_cache
def library(cpu: str = THIS_CPU, *macros: str) -> Library | Unavailable:
    """The library of this process; compiled first if the cache does not hold it. Tests define `macros`."""
    loaded = load_library(cpu, macros, structs=structs.ALL, layout_tables=("legato_lm_layout",))
    if isinstance(loaded, Unavailable):
        return loaded
    missing = next((name for name in FUNCTIONS if not hasattr(loaded, name)), None)
    if missing is not None:
        return Unavailable(f"the library lacks a function: {missing}")
    loaded.legato_layers.restype = loaded.legato_map.restype = None
    loaded.legato_prepared.restype = loaded.legato_tiles.restype = c_int64
    failure = self_test(loaded)
    if failure is not None:
        return Unavailable(f"the self-test failed: {failure}")
    return Library(
        layers=loaded.legato_layers,
        map=loaded.legato_map,
        prepared=loaded.legato_prepared,
        frame=loaded.legato_frame,
        draw=loaded.legato_draw,
        amx=bool(loaded.legato_tiles()),
    )
