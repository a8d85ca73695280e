"""The library of compiled layers: made once, kept, switched off by the environment, and never a reason to fail."""

from __future__ import annotations

from pathlib import Path

import pytest

from legato.kernels.build import Unavailable
from legato.kernels.library import Library, library


@pytest.mark.skipif(isinstance(library(), Unavailable), reason="nothing compiled here")
def test_what_is_compiled_can_be_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(library(), Library)
    library.cache_clear()
    monkeypatch.setenv("LEGATO_NATIVE", "0")
    off = library()
    library.cache_clear()
    assert off == Unavailable("LEGATO_NATIVE is 0")
    monkeypatch.delenv("LEGATO_NATIVE")
    monkeypatch.setenv("PATH", "")
    without = library()
    library.cache_clear()
    assert without == Unavailable("no C compiler (cc)")


@pytest.mark.skipif(isinstance(library(), Unavailable), reason="nothing compiled here")
def test_it_is_compiled_once_and_a_compiler_that_fails_is_only_said(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    made = []
    for _ in range(2):
        library.cache_clear()
        assert isinstance(library(), Library)
        made.append([(path.name, path.stat().st_mtime_ns) for path in (tmp_path / "legato" / "native").iterdir()])
    assert len(made[0]) == 1
    assert made[0] == made[1]
    broken = tmp_path / "bin" / "cc"
    broken.parent.mkdir()
    broken.write_text("#!/bin/sh\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("PATH", str(broken.parent))
    library.cache_clear()
    failed = library()
    library.cache_clear()
    assert isinstance(failed, Unavailable)
    assert str(broken) in failed.reason
