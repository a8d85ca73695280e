"""Compiles C files to a shared library for this CPU, keeps it in the user's cache, and loads it.

A failure is returned as `Unavailable` with its reason and not raised: the PyTorch backend computes the same.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
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

_log = logging.getLogger(__name__)

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
    flags = (*FLAGS, f"-march={cpu}", *(f"-D{macro}" for macro in macros))
    try:
        loaded = _load(compiler, flags)
        layout = c_layout(loaded[table] for table in layout_tables)
    except subprocess.SubprocessError as error:
        return Unavailable(f"{compiler} failed: {error}{_diagnostic(error)}")
    except OSError as error:
        return Unavailable(f"the library does not load: {error}")
    except AttributeError as error:
        return Unavailable(f"the library lacks a function: {error}")
    difference = layout_difference(layout, python_layout(structs))
    return Unavailable(f"the struct layout differs from C: {difference}") if difference else loaded


def _load(compiler: str, flags: tuple[str, ...]) -> ctypes.CDLL:
    """The cached library; rebuilt once if it is damaged, or does not load (another C library)."""
    folder = native_folder()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    _check_private(folder)
    cached = folder / f"kernels-{_key(compiler, flags)}.so"
    if _is_intact(cached):
        try:
            return ctypes.CDLL(str(cached))
        except OSError as error:
            _log.warning("%s does not load and is built again: %s", cached, error)
    _build(compiler, flags, cached)
    return ctypes.CDLL(str(cached))


def _key(compiler: str, flags: tuple[str, ...]) -> str:
    """Digest of everything that the library depends on, so that a cache may be shared by machines."""
    version = subprocess.run([compiler, "--version"], capture_output=True, check=True, timeout=20).stdout
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    features = sorted({line for line in lines if line.startswith(("flags", "model name", "Features", "CPU part"))})
    contents = [each.read_bytes() for each in (*SOURCES, *HEADERS)]
    return hashlib.sha256(b"\0".join((*contents, version, repr((features, flags)).encode()))).hexdigest()[:24]


def _check_private(path: Path) -> None:
    """`PermissionError` if another user can write to `path`: a library is code that this process runs."""
    status = path.stat()
    if status.st_uid not in (os.getuid(), 0) or status.st_mode & 0o022:
        raise PermissionError(f"{path} must belong to this user, and no other user may write to it")


def _is_intact(library: Path) -> bool:
    """Whether the cache holds the library as it was built. Loading a truncated file would kill the process."""
    digest = library.with_suffix(".sha256")
    if not library.is_file() or not digest.is_file():
        return False
    _check_private(library)
    return digest.read_text(encoding="ascii", errors="replace") == _digest(library)


def _digest(library: Path) -> str:
    return hashlib.sha256(library.read_bytes()).hexdigest()


def _build(compiler: str, flags: tuple[str, ...], target: Path) -> None:
    """Compile into a temporary folder, then move the library and its digest to their places."""
    with tempfile.TemporaryDirectory(dir=target.parent) as build:
        objects, library = [Path(build) / f"{source.stem}.o" for source in SOURCES], Path(build) / "kernels.so"
        for source, compiled in zip(SOURCES, objects, strict=True):
            _run([compiler, *flags, "-c", str(source), "-o", str(compiled)])
        _run([compiler, "-shared", "-pthread", *map(str, objects), "-lm", "-o", str(library)])
        library.chmod(0o700)
        digest = Path(build) / "digest"
        digest.write_text(_digest(library), encoding="ascii")
        # A library that does not match its digest counts as damaged, so the order of the two does not matter.
        os.replace(digest, target.with_suffix(".sha256"))
        os.replace(library, target)


def _diagnostic(error: subprocess.SubprocessError) -> str:
    """The first error of the compiler in its own words, after a colon; "" if it printed none."""
    output = getattr(error, "stderr", None) or b""
    lines = [line for line in output.decode(errors="replace").splitlines() if "error" in line]
    return f": {lines[0].strip()}" if lines else ""


def _run(command: list[str]) -> None:
    subprocess.run(command, check=True, capture_output=True, timeout=120)
