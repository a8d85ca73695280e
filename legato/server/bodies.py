"""The body of a request, as JSON or as a form, read with its limits. Owns nothing after it has returned."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping

from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.formparsers import MultiPartException
from starlette.requests import Request

from legato.server.errors import ApiError

_LARGE_BYTES = 64 * 1024
_FORMS = ("multipart/form-data", "application/x-www-form-urlencoded")


async def read_fields(request: Request, files: tuple[str, ...]) -> tuple[Mapping[str, object], bytes, bool]:
    """The fields, the bytes of the first uploaded file among `files`, and whether it was a form.

    Fields that are null in JSON are as good as left out.
    """
    kind = request.headers.get("content-type", "application/json").partition(";")[0].strip().lower()
    if kind in _FORMS:
        return (*await _form(request, files), True)
    if kind not in ("application/json", "") and not kind.endswith("+json"):
        raise ApiError(
            415, "unsupported_media_type", f"send application/json or multipart/form-data, not {kind[:80]!r}"
        )
    body = await request.body()
    parsed = await asyncio.to_thread(_json, body) if len(body) > _LARGE_BYTES else _json(body)
    if not isinstance(parsed, dict):
        raise ApiError(400, "invalid_json", "the body must be a JSON object")
    return {name: value for name, value in parsed.items() if value is not None}, b"", False


def _json(body: bytes) -> object:
    try:
        value: object = json.loads(body, parse_constant=_no_constant)
        if b"\\ud" in body.lower():
            json.dumps(value, ensure_ascii=False).encode()  # half a surrogate pair is no character
    except (ValueError, RecursionError) as error:
        raise ApiError(400, "invalid_json", f"the body is not JSON: {error}"[:300]) from error
    return value


def _no_constant(name: str) -> object:
    raise ValueError(f"{name} is no number of JSON")


async def _form(request: Request, files: tuple[str, ...]) -> tuple[Mapping[str, object], bytes]:
    fields: dict[str, object] = {}
    uploads: list[bytes] = []
    try:
        async with request.form(max_files=1, max_fields=100) as form:
            for name, value in form.multi_items():
                if name.lstrip().startswith("{"):
                    raise ApiError(
                        415, "unsupported_media_type", "the body is JSON; say so: Content-Type: application/json"
                    )
                if not isinstance(value, UploadFile):
                    fields[name] = value.split(",") if name == "packet_frames" else value
                elif name in files:
                    uploads.append(await value.read())
                else:
                    raise ApiError(
                        400, "invalid_request", f"no file is expected as {name[:80]!r}, but as {' or '.join(files)}"
                    )
    except (MultiPartException, StarletteHTTPException) as error:
        why = error.message if isinstance(error, MultiPartException) else error.detail
        raise ApiError(400, "invalid_form", f"the form cannot be read: {why}") from error
    return fields, uploads[0] if uploads else b""
