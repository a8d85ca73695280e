"""Read request bodies: JSON or forms, with limits that depend on whether a recording is in them.

A body without a recording may have `JSON_BYTES`. With one, the limit is that of the server (`body_bytes`); large JSON
is parsed in a thread. Uploaded files are kept in memory, so that no temporary folder is needed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import parse_qsl

from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request

from legato.server.bridge import Pool
from legato.server.errors import ApiError
from legato.server.json_body import parse_json
from legato.server.state import state_of

JSON_BYTES = 2**20
"""Largest body without a recording; of a JSON body with one, largest size of everything else."""
_LARGE_BYTES = 64 * 1024
"""JSON above this size is parsed in a thread."""
MAX_FIELDS = 100
_RECORDING_FIELDS = ("ref_audio", "references")


@dataclass(frozen=True, slots=True)
class RequestBody:
    """A parsed body. JSON fields that are null are omitted. `upload`: the content of the uploaded file, if any."""

    fields: Mapping[str, object]
    is_form: bool = False
    upload: bytes | None = None


class _MemoryParser(MultiPartParser):
    """Keeps uploaded files in memory; the limit of the body bounds them."""

    spool_max_size = 2**31


async def read_body(request: Request, *, upload_names: tuple[str, ...]) -> RequestBody:
    """Parse the body by its content type. `upload_names`: the form fields that may hold a file."""
    content_type = request.headers.get("content-type", "application/json").partition(";")[0].strip().lower()
    if content_type == "multipart/form-data":
        return await _read_multipart(request, upload_names)
    if content_type == "application/x-www-form-urlencoded":
        return _read_urlencoded(await _read_bytes(request))
    if content_type not in ("application/json", "") and not content_type.endswith("+json"):
        raise ApiError(
            415,
            "unsupported_media_type",
            f"unsupported Content-Type {content_type[:80]!r}: send application/json or multipart/form-data",
        )
    return await _read_json(request)


async def _read_bytes(request: Request) -> bytes:
    """The body. `request.body()` would keep a copy for as long as the request exists."""
    return b"".join([chunk async for chunk in request.stream()])


async def _read_json(request: Request) -> RequestBody:
    data = await _read_bytes(request)
    large = len(data) > JSON_BYTES
    if large and not any(b'"%s"' % name.encode() in data for name in _RECORDING_FIELDS):
        raise _too_large()
    try:
        bridge = state_of(request).bridge
        parsed = await bridge.in_thread(Pool.PARSE, parse_json, data) if len(data) > _LARGE_BYTES else parse_json(data)
    except ValueError as error:
        raise ApiError(400, "invalid_json", f"the body is not valid JSON: {error}") from error
    if not isinstance(parsed, dict):
        raise ApiError(400, "invalid_json", f"the body must be a JSON object, not {type(parsed).__name__}")
    if large and len(data) - sum(_length(parsed.get(name)) for name in _RECORDING_FIELDS) > JSON_BYTES:
        raise _too_large()
    return RequestBody({name: value for name, value in parsed.items() if value is not None})


def _length(recording: object) -> int:
    """Characters of a recording, which is a string or a list with one."""
    if isinstance(recording, list) and len(recording) == 1:
        recording = recording[0]
    return len(recording) if isinstance(recording, str) else 0


def _read_urlencoded(data: bytes) -> RequestBody:
    if len(data) > JSON_BYTES:
        raise _too_large()
    try:
        pairs = parse_qsl(data.decode("latin-1"), keep_blank_values=True, max_num_fields=MAX_FIELDS)
    except ValueError as error:
        raise _invalid_form(f"more than {MAX_FIELDS} fields") from error
    return RequestBody(_fields(pairs), is_form=True)


def read_query(query: str) -> RequestBody:
    """The fields in a query string, like those of a form."""
    return _read_urlencoded(query.encode("latin-1"))


async def _read_multipart(request: Request, upload_names: tuple[str, ...]) -> RequestBody:
    parser = _MemoryParser(
        request.headers, request.stream(), max_files=1, max_fields=MAX_FIELDS, max_part_size=JSON_BYTES
    )
    try:
        form = await parser.parse()
    except MultiPartException as error:
        raise _invalid_form(error.message) from error
    except ValueError as error:  # python-multipart's own errors
        raise _invalid_form("it does not follow the multipart format") from error
    upload: bytes | None = None
    pairs: list[tuple[str, str]] = []
    unexpected: str | None = None
    for name, value in form.multi_items():
        if not isinstance(value, UploadFile):
            pairs.append((name, value))
        elif name in upload_names:
            upload = await value.read()
        else:
            unexpected = name
    await form.close()
    if unexpected is not None:
        raise ApiError(
            400,
            "invalid_request",
            f"unexpected file field {unexpected[:80]!r}: upload the file as {' or '.join(upload_names)}",
        )
    if sum(len(name) + len(value) for name, value in pairs) > JSON_BYTES:
        raise _too_large()
    return RequestBody(_fields(pairs), is_form=True, upload=upload)


def _fields(pairs: list[tuple[str, str]]) -> dict[str, object]:
    if any(name.lstrip().startswith("{") for name, _ in pairs):  # JSON sent with curl's default form content type
        raise ApiError(
            415, "unsupported_media_type", "the body looks like JSON: send it with Content-Type: application/json"
        )
    return {name: value.split(",", 100) if name == "packet_frames" else value for name, value in pairs}


def _invalid_form(reason: str) -> ApiError:
    return ApiError(400, "invalid_form", f"the form cannot be parsed: {reason}")


def _too_large() -> ApiError:
    return ApiError(
        413,
        "too_large",
        f"a request may have {JSON_BYTES // 2**20} MiB besides the recording in ref_audio",
        param="body",
    )
