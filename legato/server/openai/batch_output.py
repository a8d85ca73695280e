"""Forms of a batch response: JSON lines, one JSON object, server-sent events, or a zip archive.

A `BatchOutput` belongs to one response. Its methods return the bytes to send; they do no I/O.
"""

from __future__ import annotations

import base64
import io
import json
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Protocol

from legato.server.errors import ApiError, error_body
from legato.server.openai.batch_schema import BatchItem, Output
from legato.server.openai.whole_speech import SpokenFile
from legato.server.request_records import RequestRecord, usage

_PROGRESS_S = 1.0
"""Interval of progress events while no result is ready."""
_MANIFEST = "results.json"


@dataclass(frozen=True, slots=True)
class ItemResult:
    """A finished item: its file, or the error that it failed with."""

    item: BatchItem
    record: RequestRecord
    file: SpokenFile | None
    error: ApiError | None

    def as_json(self) -> dict[str, object]:
        """The result without the audio."""
        result: dict[str, object] = {"index": self.item.index, "id": self.item.id or None}
        if self.file is None:
            assert self.error is not None, "a result has a file or an error"
            return {**result, "status": "failed", **error_body(self.error)}
        record = self.record
        words = {"words": list(self.file.words)} if self.file.words else {}
        return {
            **result,
            "status": "success",
            "request_id": record.id,
            "response_format": self.file.kind.value,
            "media_type": self.file.kind.media_type,
            "sample_rate": record.sample_rate_hz,
            "samples": record.samples,
            "finish_reason": record.finish_reason,
            "usage": usage(record.input_tokens, record.frames),
            "notes": list(record.notes),
            **words,
        }

    def with_audio(self) -> dict[str, object]:
        """The result with the file as base64."""
        if self.file is None:
            return self.as_json()
        return {**self.as_json(), "audio_data": base64.b64encode(self.file.data).decode()}


@dataclass(frozen=True, slots=True)
class BatchProgress:
    """How far a batch is. `share`: of the characters, 0 to 1. `left_s`: estimate; None before the first result."""

    total: int
    done: int
    failed: int
    share: float
    audio_s: float
    elapsed_s: float
    left_s: float | None

    def as_json(self) -> dict[str, object]:
        """The progress with rounded numbers."""
        return {name: round(value, 3) if isinstance(value, float) else value for name, value in asdict(self).items()}


class BatchOutput(Protocol):
    """One form of the response."""

    media_type: str
    headers: Mapping[str, str]

    def begin(self, items: Sequence[BatchItem]) -> None:
        """Prepare for these items."""

    def add(self, result: ItemResult, progress: BatchProgress) -> bytes:
        """Bytes for a result."""

    def idle_s(self, comment_s: float) -> float | None:
        """Time without results after which `idle` is due; None if this form has nothing to say then."""

    def idle(self, progress: BatchProgress) -> bytes:
        """Bytes while no result is ready."""

    def end(self, progress: BatchProgress) -> bytes:
        """Bytes after the last result."""


def make_output(output: Output) -> BatchOutput:
    """The chosen form."""
    forms: dict[Output, type[_JsonLines | _OneObject | _Events | _Archive]] = {
        "jsonl": _JsonLines,
        "json": _OneObject,
        "sse": _Events,
        "zip": _Archive,
    }
    return forms[output]()


class _Silent:
    """A form that sends nothing between results."""

    headers: Mapping[str, str] = {}

    def begin(self, items: Sequence[BatchItem]) -> None:
        """Nothing to prepare."""

    def idle_s(self, comment_s: float) -> float | None:  # noqa: ARG002
        """Nothing to say."""
        return None

    def idle(self, progress: BatchProgress) -> bytes:  # noqa: ARG002
        """Nothing to say."""
        return b""


class _JsonLines(_Silent):
    """A JSON object for each result, and one with the totals, each on a line."""

    media_type = "application/x-ndjson"

    def add(self, result: ItemResult, progress: BatchProgress) -> bytes:  # noqa: ARG002
        return _line(result.with_audio())

    def end(self, progress: BatchProgress) -> bytes:
        return _line({"object": "speech.batch", **progress.as_json()})


class _OneObject(_Silent):
    """One JSON object with all results, in the order of the items, as sglang-omni sends it."""

    media_type = "application/json"

    def __init__(self) -> None:
        self._results: list[tuple[int, dict[str, object]]] = []

    def add(self, result: ItemResult, progress: BatchProgress) -> bytes:  # noqa: ARG002
        self._results.append((result.item.index, result.with_audio()))
        return b""

    def end(self, progress: BatchProgress) -> bytes:
        results = [result for _, result in sorted(self._results, key=lambda pair: pair[0])]
        return _line({"object": "speech.batch", **progress.as_json(), "results": results})


class _Events(_Silent):
    """Server-sent events: results, and progress after each and every second."""

    media_type = "text/event-stream; charset=utf-8"

    def add(self, result: ItemResult, progress: BatchProgress) -> bytes:
        item = _event({"type": "speech.batch.item", **result.with_audio()})
        return item + _event({"type": "speech.batch.progress", **progress.as_json()})

    def idle_s(self, comment_s: float) -> float | None:
        return min(_PROGRESS_S, comment_s)

    def idle(self, progress: BatchProgress) -> bytes:
        return _event({"type": "speech.batch.progress", **progress.as_json()})

    def end(self, progress: BatchProgress) -> bytes:
        return _event({"type": "speech.batch.done", **progress.as_json()})


class _Archive(_Silent):
    """A zip archive that is sent while it grows: a file for each result, and `results.json` at the end."""

    media_type = "application/zip"
    headers: Mapping[str, str] = {"Content-Disposition": 'attachment; filename="speech.zip"'}

    def __init__(self) -> None:
        self._sink = _Sink()
        self._zip = zipfile.ZipFile(self._sink, "w", zipfile.ZIP_STORED)
        self._results: list[tuple[int, dict[str, object]]] = []

    def add(self, result: ItemResult, progress: BatchProgress) -> bytes:  # noqa: ARG002
        entry = result.as_json()
        if result.file is not None:
            suffix = "ogg" if result.file.kind.value == "opus" else result.file.kind.value
            name = f"{result.item.file_stem}.{suffix}"
            self._zip.writestr(name, result.file.data)
            entry["file"] = name
        self._results.append((result.item.index, entry))
        return self._sink.take()

    def end(self, progress: BatchProgress) -> bytes:
        results = [result for _, result in sorted(self._results, key=lambda pair: pair[0])]
        manifest = {"object": "speech.batch", **progress.as_json(), "results": results}
        self._zip.writestr(_MANIFEST, json.dumps(manifest, ensure_ascii=False, indent=1))
        self._zip.close()
        return self._sink.take()


class _Sink(io.RawIOBase):
    """A file that cannot seek: what is written is taken and sent."""

    def __init__(self) -> None:
        super().__init__()
        self._data = bytearray()

    def writable(self) -> bool:
        return True

    def write(self, data: bytes, /) -> int:  # type: ignore[override]
        self._data += data
        return len(data)

    def take(self) -> bytes:
        """The bytes since the last call."""
        data, self._data = bytes(self._data), bytearray()
        return data


def _line(body: Mapping[str, object]) -> bytes:
    return json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


def _event(body: Mapping[str, object]) -> bytes:
    return b"data: " + _line(body) + b"\n"
