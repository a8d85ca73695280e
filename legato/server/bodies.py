"""Read request bodies: JSON or forms. Large JSON is parsed in a thread, so that the event loop is not blocked."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass

from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.formparsers import MultiPartException
from starlette.requests import Request

from legato.server.errors import ApiError

_LARGE_BYTES = 64 * 1024
"""JSON above this size is parsed in a thread."""
_FORM_TYPES = ("multipart/form-data", "application/x-www-form-urlencoded")


@dataclass(frozen=True, slots=True)
class RequestBody:
    """A parsed body. JSON fields that are null are omitted. `upload`: the content of the uploaded file, if any."""

    fields: Mapping[str, object]
    is_form: bool = False
    upload: bytes | None = None


async def read_body(request: Request, *, upload_names: tuple[str, ...]) -> RequestBody:
    """Parse the body by its content type. `upload_names`: the form fields that may hold a file."""
    content_type = request.headers.get("content-type", "application/json").partition(";")[0].strip().lower()
    if content_type in _FORM_TYPES:
        return await _read_form(request, upload_names)
    if content_type not in ("application/json", "") and not content_type.endswith("+json"):
        raise ApiError(
            415,
            "unsupported_media_type",
            f"unsupported Content-Type {content_type[:80]!r}: send application/json or multipart/form-data",
        )
    data = await request.body()
    parsed = await asyncio.to_thread(_parse_json, data) if len(data) > _LARGE_BYTES else _parse_json(data)
    if not isinstance(parsed, dict):
        raise ApiError(400, "invalid_json", f"the body must be a JSON object, not {type(parsed).__name__}")
    return RequestBody({name: value for name, value in parsed.items() if value is not None})


def _parse_json(data: bytes) -> object:
    try:
        value: object = json.loads(data, parse_constant=_reject_constant)
        if b"\\ud" in data.lower():
            # An escaped lone surrogate parses but cannot be encoded later: `encode` raises UnicodeEncodeError here.
            json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise ApiError(400, "invalid_json", f"the body is not valid JSON: {error}"[:300]) from error
    return value


def _reject_constant(name: str) -> object:
    raise ValueError(f"{name} is not a JSON number")


async def _read_form(request: Request, upload_names: tuple[str, ...]) -> RequestBody:
    fields: dict[str, object] = {}
    upload: bytes | None = None
    try:
        async with request.form(max_files=1, max_fields=100) as form:
            for name, value in form.multi_items():
                if name.lstrip().startswith("{"):  # JSON sent with curl's default form content type
                    raise ApiError(
                        415,
                        "unsupported_media_type",
                        "the body looks like JSON: send it with Content-Type: application/json",
                    )
                if not isinstance(value, UploadFile):
                    fields[name] = value.split(",") if name == "packet_frames" else value
                elif name in upload_names:
                    upload = await value.read()
                else:
                    raise ApiError(
                        400,
                        "invalid_request",
                        f"unexpected file field {name[:80]!r}: upload the file as {' or '.join(upload_names)}",
                    )
    except (MultiPartException, StarletteHTTPException) as error:
        reason = error.message if isinstance(error, MultiPartException) else error.detail
        raise ApiError(400, "invalid_form", f"the form cannot be parsed: {reason}") from error
    return RequestBody(fields, is_form=True, upload=upload)
