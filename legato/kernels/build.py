"""Compiles C files to a shared library for this CPU, keeps it in the user's cache, and loads it.

A failure is returned as `Unavailable` with its reason and not raised: the PyTorch backend computes the same.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from ctypes import Structure
from dataclasses import dataclass
from pathlib import Path

from legato.config.environment import NATIVE_VARIABLE, native_allowed, native_folder
from legato.kernels.struct_layout import c_layout, layout_difference, python_layout

FLAGS = ("-O3", "-fPIC", "-std=gnu11", "-pthread")
FOLDER = Path(__file__).parent
SOURCES = tuple(sorted(FOLDER.glob("*.c")))
HEADERS = tuple(sorted(FOLDER.glob("*.h")))
THIS_CPU = "native"
"""The CPU of this machine, as the compiler names it. Tests compile for older ones, which have narrower vectors."""


@dataclass(frozen=True, slots=True)
class Unavailable:
    """Why the kernels cannot be used."""

    reason: str


def load_library(
    cpu: str, macros: tuple[str, ...] = (), *, structs: tuple[type[Structure], ...], layout_tables: Iterable[str]
) -> ctypes.CDLL | Unavailable:
    """Load the library of all kernels for `cpu`; compile it first if the cache does not hold it. `macros` are defined.

    There is one library, so that all kernels share one thread pool. `layout_tables` name the exported functions that
    describe the C structs, `structs` are their ctypes mirrors. If the two differ in a field's offset or size, the
    library is not used.
    """
    if not native_allowed():
        return Unavailable(f"{NATIVE_VARIABLE} is 0")
    if sys.platform != "linux":
        return Unavailable("only on Linux")
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        return Unavailable("no C compiler (cc)")
    try:
        loaded = ctypes.CDLL(
            str(_cached_library(compiler, (*FLAGS, f"-march={cpu}", *(f"-D{macro}" for macro in macros))))
        )
    except (OSError, subprocess.SubprocessError) as error:
        return Unavailable(f"{compiler} failed: {error}")
    difference = layout_difference(c_layout(loaded[table] for table in layout_tables), python_layout(structs))
    return Unavailable(f"the struct layout differs from C: {difference}") if difference else loaded


def _cached_library(compiler: str, flags: tuple[str, ...]) -> Path:
    """The compiled file. Its name is a digest of sources, compiler and CPU, so a cache may be shared by machines."""
    version = subprocess.run([compiler, "--version"], capture_output=True, check=True, timeout=20).stdout
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    features = sorted({line for line in lines if line.startswith(("flags", "model name", "Features", "CPU part"))})
    contents = [each.read_bytes() for each in (*SOURCES, *HEADERS)]
    key = hashlib.sha256(b"\0".join((*contents, version, repr((features, flags)).encode()))).hexdigest()
    folder = native_folder()
    cached = folder / f"kernels-{key[:24]}.so"
    if cached.is_file():
        return cached
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as build:
        objects, library = [Path(build) / f"{source.stem}.o" for source in SOURCES], Path(build) / "kernels.so"
        for source, target in zip(SOURCES, objects, strict=True):
            _run([compiler, *flags, "-c", str(source), "-o", str(target)])
        _run([compiler, "-shared", "-pthread", *map(str, objects), "-lm", "-o", str(library)])
        os.replace(library, cached)
    return cached


def _run(command: list[str]) -> None:
    subprocess.run(command, check=True, capture_output=True, timeout=120)
