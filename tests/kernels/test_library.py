"""Building and loading the kernel library: cached, checked, switched off by the environment; never a reason to fail."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from legato.config.environment import native_folder
from legato.kernels import build
from legato.kernels import library as library_module
from legato.kernels.build import SOURCES, Unavailable
from legato.kernels.codec_library import codec_library
from legato.kernels.library import Library, library

pytestmark = pytest.mark.skipif(isinstance(library(), Unavailable), reason="no kernels on this machine")


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    library.cache_clear()
    codec_library.cache_clear()
    yield
    library.cache_clear()
    codec_library.cache_clear()


def load() -> Library | Unavailable:
    library.cache_clear()
    return library()


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty cache folder, where libraries are compiled without optimization."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(build, "FLAGS", ("-O0", *build.FLAGS[1:]))
    return tmp_path / "legato" / "native"


def cached(folder: Path) -> Path:
    (found,) = folder.glob("*.so")
    return found


def test_kernels_can_be_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(load(), Library)
    monkeypatch.setenv("LEGATO_NATIVE", "0")
    assert load() == Unavailable("LEGATO_NATIVE is 0")
    monkeypatch.delenv("LEGATO_NATIVE")
    monkeypatch.setenv("PATH", "")
    assert load() == Unavailable("no C compiler (cc)")


def test_library_is_compiled_once(cache: Path) -> None:
    assert isinstance(load(), Library)
    assert cache.stat().st_mode & 0o777 == 0o700
    assert len(list(cache.iterdir())) == 2  # the library and its digest
    built = cached(cache).stat().st_mtime_ns
    assert isinstance(load(), Library)
    assert cached(cache).stat().st_mtime_ns == built


@pytest.mark.parametrize("damage", ["truncated", "empty", "no digest"])
def test_damaged_library_is_built_again(cache: Path, damage: str) -> None:
    assert isinstance(load(), Library)
    file = cached(cache)
    whole = file.read_bytes()
    file.unlink()  # this process has mapped the old file
    if damage != "no digest":
        file.write_bytes(whole[: len(whole) // 2] if damage == "truncated" else b"")
    else:
        file.write_bytes(whole)
        file.with_suffix(".sha256").unlink()
    file.chmod(0o700)
    before = file.stat().st_ino
    assert isinstance(load(), Library)
    assert file.stat().st_ino != before
    assert build._is_intact(file)


def test_library_that_does_not_load_is_built_once_again(cache: Path) -> None:
    assert isinstance(load(), Library)
    file = cached(cache)
    file.unlink()
    file.write_bytes(b"not a library, but with a correct digest")
    file.chmod(0o700)
    file.with_suffix(".sha256").write_text(build._digest(file))
    assert isinstance(load(), Library)


@pytest.mark.parametrize("writable", ["folder", "library"])
def test_cache_that_others_can_write_is_not_used(cache: Path, writable: str) -> None:
    assert isinstance(load(), Library)
    (cache if writable == "folder" else cached(cache)).chmod(0o777)
    found = load()
    assert isinstance(found, Unavailable)
    assert "no other user may write to it" in found.reason


@pytest.mark.skipif(not hasattr(os, "chown") or os.getuid() != 0, reason="only root can give files away")
def test_cache_of_another_user_is_not_used(cache: Path) -> None:
    cache.mkdir(parents=True, mode=0o700)
    os.chown(cache, 12345, 12345)
    found = load()
    assert isinstance(found, Unavailable)
    assert "must belong to this user" in found.reason


def test_relative_cache_path_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "cache")
    assert native_folder() == Path.home() / ".cache" / "legato" / "native"


def test_compiler_failure_is_reported_in_its_own_words(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = cache.parent.parent / "bin" / "cc"
    compiler.parent.mkdir()
    compiler.write_text('#!/bin/sh\n[ "$1" = --version ] && exit 0\necho "x.c:1: error: no such header" >&2\nexit 1\n')
    compiler.chmod(0o755)
    monkeypatch.setenv("PATH", str(compiler.parent))
    failed = load()
    assert isinstance(failed, Unavailable)
    assert str(compiler) in failed.reason
    assert failed.reason.endswith("x.c:1: error: no such header")


@pytest.mark.parametrize("function", ["legato_lm_layout", "legato_draw"])
def test_library_without_a_function_is_not_used(
    cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, function: str
) -> None:
    frame = (build.FOLDER / "frame.c").read_text().replace(f"{function}(", f"old_{function}(")
    renamed = tmp_path / "frame.c"
    renamed.write_text(frame)
    monkeypatch.setattr(build, "FLAGS", (*build.FLAGS, f"-I{build.FOLDER}"))
    monkeypatch.setattr(build, "SOURCES", tuple(renamed if path.name == "frame.c" else path for path in SOURCES))
    found = load()
    assert cache.is_dir()
    assert isinstance(found, Unavailable)
    assert "lacks a function" in found.reason
    assert function in found.reason


def test_library_that_fails_its_self_test_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library_module, "self_test", lambda _loaded: "wrong sums")
    assert load() == Unavailable("the self-test failed: wrong sums")
