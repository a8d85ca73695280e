"""The installed package: its files, its declared dependencies, and a cheap import."""

from __future__ import annotations

import ast
import importlib
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

tomllib = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")

ROOT = Path(__file__).resolve().parent.parent
MODULE_OF = {"python-crfsuite": "pycrfsuite", "imageio-ffmpeg": "imageio_ffmpeg"}
"""Import names that differ from the package name."""
UNSEEN = {"python-multipart"}
"""Imported by fastapi, not by Legato; uploads need it."""
BROUGHT = {"starlette", "pydantic"}
"""Dependencies of fastapi that are part of its interface."""


def project_lists() -> dict[str, list[str]]:
    """Requirement names in `pyproject.toml` for `dependencies` and each extra."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lists: dict[str, list[str]] = {"dependencies": project["dependencies"], **project["optional-dependencies"]}
    return {name: [re.split(r"[><=\[ ]", each)[0] for each in entries] for name, entries in lists.items()}


def imported_packages() -> set[str]:
    """Top-level modules that the package imports, except its own and those of the standard library."""
    found: set[str] = set()
    for path in (ROOT / "legato").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                found |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                found.add((node.module or "").split(".")[0])
    return found - sys.stdlib_module_names - {"legato", "_typeshed"}  # exists only for type checkers


def test_imports_and_declared_dependencies_match() -> None:
    lists = project_lists()
    stated = {name for part, names in lists.items() if part != "dev" for name in names}
    # The lexicon package is data only: its files are located, not imported.
    assert imported_packages() | {"gruut_lang_en"} | UNSEEN == {MODULE_OF.get(name, name) for name in stated} | BROUGHT


def test_every_dependency_has_a_reason_and_a_pin() -> None:
    reasons = (ROOT / "docs" / "dependencies.md").read_text(encoding="utf-8")
    constraints = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    pins = dict(re.findall(r'^([\w.-]+)==([\w.]+)(?: ; python_version [<>=]+ "3.11")?$', constraints, re.MULTILINE))
    lists = project_lists()
    for name in lists["dependencies"]:
        assert f"| {name} | {pins[name]} |" in reasons
    optional = {name for part, names in lists.items() if part != "dependencies" for name in names}
    assert not [name for name in optional if not re.search(rf"^\| `\w+` \|.*\b{name}\b", reasons, re.MULTILINE)]
    assert optional - {"sounddevice"} <= set(pins)


def test_control_known_dependencies_are_found() -> None:
    """Control: the tests above find packages that are certainly used."""
    assert {"torch", "numpy", "tokenizers"} <= set(project_lists()["dependencies"]) & imported_packages()


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package as pip installs it from a copy of its sources; nothing is downloaded."""
    folder = tmp_path_factory.mktemp("install")
    source, target = folder / "source", folder / "target"
    source.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE", "NOTICE"):
        shutil.copy(ROOT / name, source)
    shutil.copytree(ROOT / "legato", source / "legato", ignore=shutil.ignore_patterns("__pycache__"))
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-index"]
    options = ["--no-deps", "--no-build-isolation", "--no-compile", "--target", str(target), str(source)]
    run = subprocess.run([*command, *options], capture_output=True, text=True, check=False, timeout=300)
    assert run.returncode == 0, run.stdout + run.stderr
    return target


def test_install_contains_every_file(installed: Path) -> None:
    files = [path.relative_to(ROOT) for path in (ROOT / "legato").rglob("*") if path.is_file()]
    kept = [path for path in files if "__pycache__" not in path.parts and path.suffix != ".pyc"]
    missing = [path.as_posix() for path in kept if not (installed / path).is_file()]
    assert not missing
    assert (installed / "legato" / "py.typed").is_file()
    assert not (installed / "tests").exists()


def test_install_contains_the_embedded_voice(installed: Path) -> None:
    assert list((installed / "legato" / "assets").rglob("*.safetensors"))


def test_install_metadata_has_licence_and_command(installed: Path) -> None:
    (info,) = installed.glob("legato_tts-*.dist-info")
    metadata = (info / "METADATA").read_text(encoding="utf-8")
    assert "License-Expression: Apache-2.0" in metadata
    assert {path.name for path in info.rglob("*") if path.is_file()} >= {"LICENSE", "NOTICE"}
    assert "legato = legato.cli.main:main" in (info / "entry_points.txt").read_text(encoding="utf-8")


def test_installed_size_is_bounded(installed: Path) -> None:
    code = sum(path.stat().st_size for path in (installed / "legato").rglob("*.py"))
    everything = sum(path.stat().st_size for path in installed.rglob("*") if path.is_file())
    assert code < 1_800_000  # 1.75 MB
    assert everything < 60_000_000


IMPORT = """
import sys, time
started = time.perf_counter()
import legato
took = time.perf_counter() - started
print(took, sorted({"torch", "numpy", "tokenizers", "huggingface_hub", "soundfile"} & set(sys.modules)))
"""


def test_import_is_fast_and_light() -> None:
    """Under 0.3 s (best of three fresh processes), without importing torch, numpy and other large packages."""
    command = [sys.executable, "-c", IMPORT]
    runs = [subprocess.run(command, capture_output=True, text=True, check=True) for _ in range(3)]
    assert {run.stdout.split(" ", 1)[1].strip() for run in runs} == {"[]"}
    assert {run.stderr for run in runs} == {""}
    assert min(float(run.stdout.split(" ", 1)[0]) for run in runs) < 0.3


def test_control_using_load_imports_torch() -> None:
    """Control: the check above would detect torch."""
    code = "import sys, legato; legato.load; print('torch' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "True"
