"""Locating a checkpoint: folders, names, and a hub that works, interrupts a download, or cannot be reached.

The hub is a small server on this machine, asked by `huggingface_hub` in a process of its own (the library reads its
environment once).
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from legato.errors import CheckpointError, InputError
from legato.weights.hub import OFFICIAL_MODELS, REQUIRED_FILES, locate, missing_files
from tests.conftest import TinyCheckpoint

COMMIT = "5d83992436eae1d760afd27aff78a71d676296fc"
CUT = 12_000_000
"""More than one block of the hub library."""
ROOT = Path(__file__).parents[2]
FETCH = """
import sys
from legato.errors import DownloadError
from legato.weights.hub import locate, missing_files
seen = []
try:
    folder = locate(sys.argv[1], revision=sys.argv[2] or None, progress=seen.append)
except DownloadError as error:
    print("refused:", error)
else:
    print("missing:", missing_files(folder))
    print("progress:", [each.item for each in seen], bool(seen) and seen[-1].done == seen[-1].total)
    print("extra:", sorted(path.name for path in folder.rglob("*.md")))
"""


class Hub(ThreadingHTTPServer):
    """Serves one folder as any repository; `cut` interrupts the next download of a file after this number of bytes."""

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.folder = folder
        self.cut: dict[str, int] = {}
        self.asked: list[tuple[str, str]] = []
        self.revisions: set[str] = set()

    def files(self) -> dict[str, Path]:
        return {path.relative_to(self.folder).as_posix(): path for path in self.folder.rglob("*") if path.is_file()}


class Handler(BaseHTTPRequestHandler):
    """The three requests of a download: the list of files, a file's head, a file (from an offset)."""

    server: Hub
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.answer(body=True)

    def do_HEAD(self) -> None:
        self.answer(body=False)

    def answer(self, *, body: bool) -> None:
        path = self.path.split("?")[0]
        for mark in ("/revision/", "/resolve/"):
            if mark in path:
                self.server.revisions.add(path.split(mark, 1)[1].partition("/")[0])
        if path.startswith("/api/models/"):
            siblings = [{"rfilename": name, "size": file.stat().st_size} for name, file in self.server.files().items()]
            found = {"id": "some/model", "modelId": "some/model", "sha": COMMIT, "siblings": siblings}
            self.reply(200, json.dumps(found).encode(), {"Content-Type": "application/json"}, body)
            return
        name = path.split("/resolve/", 1)[-1].partition("/")[2]
        file = self.server.files().get(name)
        if file is None:
            self.reply(404, b"", {"X-Error-Code": "EntryNotFound"}, body)
            return
        content = file.read_bytes()
        headers = {
            "ETag": f'"{hashlib.sha256(content).hexdigest()}"',
            "X-Repo-Commit": COMMIT,
            "Accept-Ranges": "bytes",
        }
        start = int(self.headers.get("Range", "bytes=0-").removeprefix("bytes=").split("-")[0])
        if body:
            self.server.asked.append((name, self.headers.get("Range", "")))
        if start:
            headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
        self.reply(206 if start else 200, content[start:], headers, body, self.server.cut.pop(name, 0) if body else 0)

    def reply(self, status: int, content: bytes, headers: dict[str, str], body: bool, cut: int = 0) -> None:
        self.send_response(status)
        for key, value in (headers | {"Content-Length": str(len(content))}).items():
            self.send_header(key, value)
        self.end_headers()
        if body:
            self.wfile.write(content[:cut] if cut else content)
        if cut:
            self.close_connection = True

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""


@pytest.fixture
def hub(tiny_checkpoint: TinyCheckpoint, tmp_path: Path) -> Iterator[Hub]:
    folder = tmp_path / "served"
    folder.mkdir()
    source = tiny_checkpoint("tiny-base")
    for path in source.rglob("*.*"):
        (folder / path.relative_to(source)).parent.mkdir(exist_ok=True)
        (folder / path.relative_to(source)).symlink_to(path)
    (folder / "README.md").write_text("not needed")
    server = Hub(folder)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def fetched(cache: Path, endpoint: str, model: str = "some/model", revision: str = "", **environment: str) -> str:
    """Output of a process that locates `model`."""
    plain = {
        key: value for key, value in os.environ.items() if not key.startswith("HF_") and "proxy" not in key.lower()
    }
    done = subprocess.run(
        [sys.executable, "-c", FETCH, model, revision],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=120,
        env=plain | {"HF_HOME": str(cache), "HF_ENDPOINT": endpoint, "HF_HUB_DISABLE_TELEMETRY": "1"} | environment,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_download_resume_and_reuse(hub: Hub, tmp_path: Path) -> None:
    """An interrupted download is resumed; afterwards the cache is used without network access."""
    endpoint, cache = f"http://127.0.0.1:{hub.server_port}", tmp_path / "cache"
    hub.cut["model.safetensors"] = CUT
    out = fetched(cache, endpoint)
    assert "missing: []" in out
    assert f"progress: {list(REQUIRED_FILES)} True" in out
    assert "extra: []" in out
    ranges = [asked for name, asked in hub.asked if name == "model.safetensors"]
    assert len(ranges) == 2
    assert ranges[0] == ""
    assert 0 < int(ranges[1].removeprefix("bytes=").removesuffix("-")) <= CUT
    offline = fetched(cache, "http://127.0.0.1:1", HF_HUB_OFFLINE="1")
    assert "missing: []" in offline
    assert "progress: [] False" in offline


@pytest.mark.parametrize(("model", "revision"), [("some/model@v1.2", ""), ("some/model", "v1.2")])
def test_revision_is_downloaded(hub: Hub, tmp_path: Path, model: str, revision: str) -> None:
    out = fetched(tmp_path / "cache", f"http://127.0.0.1:{hub.server_port}", model, revision)
    assert "missing: []" in out
    assert hub.revisions == {"v1.2"}


def test_revision_of_a_model_that_is_not_on_the_hub_is_refused(tiny_checkpoint: TinyCheckpoint) -> None:
    for model in ("embedded", tiny_checkpoint("tiny-base")):
        with pytest.raises(InputError, match="is not on the hub, so it has no revision 'v1'"):
            locate(model, revision="v1")
    with pytest.raises(InputError, match="contradict each other"):
        locate("some/model@v1", revision="v2")


def test_error_for_unreachable_hub_has_instructions(tmp_path: Path) -> None:
    out = fetched(tmp_path / "cache", "http://127.0.0.1:1", HF_HUB_OFFLINE="1")
    assert out.startswith("refused: cannot download some/model")
    assert all(name in out for name in REQUIRED_FILES)
    assert "hf download some/model --local-dir CHECKPOINT" in out
    assert "HF_HOME" in out


def test_existing_folder_is_used(tiny_checkpoint: TinyCheckpoint) -> None:
    folder = tiny_checkpoint("tiny-base")
    assert locate(folder) == locate(str(folder)) == folder
    assert missing_files(folder) == []


@pytest.mark.parametrize("name", ["no such folder", "/nowhere/at/all", "a/b/c", "", "tiny-base"])
def test_neither_folder_nor_hub_id(name: str) -> None:
    with pytest.raises(CheckpointError, match="neither a folder nor a hub id") as caught:
        locate(name)
    assert all(official in str(caught.value) for official in OFFICIAL_MODELS)


def test_missing_files_are_listed(tmp_path: Path) -> None:
    assert set(missing_files(tmp_path)) == set(REQUIRED_FILES)
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "part-1.safetensors"}}))
    assert "part-1.safetensors" in missing_files(tmp_path)
    (tmp_path / "part-1.safetensors").touch()
    assert "model.safetensors" not in missing_files(tmp_path)
