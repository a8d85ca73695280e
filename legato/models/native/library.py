"""C files as libraries of this process: compiled once for this CPU, kept in the user's cache; and that of `layers.c`.

Owns the compiled file. Whatever goes wrong is a sentence, not an error: there is another way to compute. Knows no
module and no weights.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from ctypes import POINTER, Structure, c_float, c_int64, c_void_p
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import torch

from legato.config.native import SWITCH, native_allowed, native_folder

SOURCES = tuple(
    Path(__file__).with_name(name)
    for name in ("layers.c", "frame.c", "bytes.c", "bytes_tiles.c", "fours.c", "unrounded.c")
)
HEADERS = tuple(Path(__file__).with_name(name) for name in ("layers.h", "maps.h", "tiles.h", "lanes.h"))
FLAGS = ("-O3", "-fopenmp", "-fPIC", "-std=gnu11")
HERE = "native"
"""This CPU, for the compiler; an older one has narrower vectors."""


BYTES, HALVES, FOURS, FLOATS = range(4)
"""Kinds of maps: 8-bit weights, bfloat16, 4-bit weights, float32."""


class Map(Structure):
    """A linear map and the kind of its weights: of BYTES values, a scale and a sum of each output; of FOURS values, a
    step and a middle of each group; of HALVES and FLOATS values alone."""

    _fields_ = (
        *((name, c_void_p) for name in ("values", "scales", "sums")),
        *((name, c_int64) for name in ("n", "k", "kind", "tiles")),
    )


class Layer(Structure):
    """Maps and norms. Maps of one input are joint or apart: of joint ones the first is all, the others are empty."""

    _fields_ = (
        *(("qkv", Map * 3), ("out", Map), ("gate_up", Map * 2), ("down", Map)),
        *((name, c_void_p) for name in ("input_norm", "post_norm", "q_norm", "k_norm")),
    )


class Stack(Structure):
    """Layers one after another, and their sizes."""

    _fields_ = (
        ("layers", POINTER(Layer)),
        *((name, c_int64) for name in ("count", "width", "inner", "heads", "kv_heads", "head_dim")),
        ("eps", c_float),
    )


class Cache(Structure):
    """Where keys and values are kept, and the place of each row of a call."""

    _fields_ = (
        *((name, c_void_p) for name in ("keys", "values")),
        *((name, c_int64) for name in ("layer", "slot", "head", "position")),
        *((name, c_void_p) for name in ("slots", "positions")),
        ("half", c_int64),
    )


class Room(Structure):
    """Scratch of a call."""

    _fields_ = (
        *((name, c_void_p) for name in ("wide", "mixed", "narrow", "residual", "normed", "scales", "scores", "ready")),
        ("ready_row", c_int64),
    )


@dataclass(frozen=True, slots=True)
class Library:
    """The functions of `layers.c` and `frame.c`. They let other Python threads run meanwhile."""

    layers: Callable[..., object]
    map: Callable[..., object]
    prepared: Callable[..., int]
    frame: Callable[..., int]
    draw: Callable[..., int]
    tiles: bool
    """Whether products of 8-bit weights with several rows go through matrix tiles."""


@dataclass(frozen=True, slots=True)
class Missing:
    """Why there is no library."""

    reason: str


def compiled_words(*, tiles: bool) -> str:
    """By what a part computes, as people are told."""
    return f"compiled for this CPU{', with its matrix tiles' * tiles}"


@lru_cache
def library(cpu: str = HERE) -> Library | Missing:
    """The library of this process, compiled first where it is not in the cache."""
    loaded = compiled("layers", SOURCES, HEADERS, cpu)
    if isinstance(loaded, Missing):
        return loaded
    loaded.legato_layers.restype = loaded.legato_map.restype = None
    loaded.legato_prepared.restype = loaded.legato_tiles.restype = c_int64
    return Library(
        *(loaded.legato_layers, loaded.legato_map, loaded.legato_prepared, loaded.legato_frame, loaded.legato_draw),
        bool(loaded.legato_tiles()),
    )


def torch_openmp() -> list[Path]:
    """The OpenMP library that came with torch, where it brought GNU's."""
    return sorted((Path(torch.__file__).parent / "lib").glob("libgomp*.so*"))[:1]


def compiled(name: str, sources: tuple[Path, ...], headers: tuple[Path, ...], cpu: str) -> ctypes.CDLL | Missing:
    """These files as one library, compiled first where it is not in the cache."""
    if not native_allowed():
        return Missing(f"{SWITCH} is 0")
    if sys.platform != "linux":
        return Missing("only on Linux")
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        return Missing("no C compiler (cc)")
    try:
        return ctypes.CDLL(str(_made(compiler, name, sources, headers, (*FLAGS, f"-march={cpu}"))))
    except (OSError, subprocess.SubprocessError) as error:
        return Missing(f"{compiler} failed: {error}")


def _made(
    compiler: str, name: str, sources: tuple[Path, ...], headers: tuple[Path, ...], flags: tuple[str, ...]
) -> Path:
    """The compiled file, named by sources, compiler and CPU: one made elsewhere is not taken for ours."""
    version = subprocess.run([compiler, "--version"], capture_output=True, check=True, timeout=20).stdout
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    features = sorted({line for line in lines if line.startswith(("flags", "model name", "Features", "CPU part"))})
    read = [each.read_bytes() for each in (*sources, *headers)]
    key = hashlib.sha256(b"\0".join((*read, version, repr((features, flags)).encode()))).hexdigest()
    folder = native_folder()
    wanted = folder / f"{name}-{key[:24]}.so"
    if wanted.is_file():
        return wanted
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as room:
        made, library = [Path(room) / f"{source.stem}.o" for source in sources], Path(room) / f"{name}.so"
        for source, part in zip(sources, made, strict=True):
            _run([compiler, *flags, "-c", str(source), "-o", str(part)])
        # The threads must be torch's own: a second pool beside it would wait where torch computes.
        threads = [*map(str, torch_openmp())] or ["-fopenmp"]
        _run([compiler, "-shared", *map(str, made), *threads, "-lm", "-o", str(library)])
        os.replace(library, wanted)
    return wanted


def _run(command: list[str]) -> None:
    subprocess.run(command, check=True, capture_output=True, timeout=120)
