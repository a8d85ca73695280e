"""Errors as clients see them: OpenAI's shape, one status for each kind of error. Owns nothing; raises nothing itself.

Every error of Legato has a stable code and may name a field; here codes become statuses and the engine's field names
become those of the request. What is not one of ours is a 500 that tells no internals and leaves its traceback in the
log, under the request's id.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException as StarletteHTTPException

from legato.errors import (
    EngineClosedError,
    GenerationError,
    InputError,
    LegatoError,
    QueueFullError,
    TextTooLongError,
)

log = logging.getLogger("legato.server")

RETRY_AFTER_S = 1
"""What a client that was turned away is told to wait; streams end every few seconds."""

_PARAMS = {
    "text": "input",
    "clone": "ref_audio",
    "instruct": "instructions",
    "max_frames": "max_new_tokens",
    "format": "response_format",
    "layout": "non_streaming_mode",
}
"""Field of the engine -> field of the request, where they differ."""


_HTTP = {
    404: ("not_found", "there is no {path} here; /docs lists what there is"),
    405: ("method_not_allowed", "{path} does not take {method}; /docs lists what it takes"),
}
"""Code and message of what the framework refuses by itself."""


class ApiError(Exception):
    """A refusal that is the server's own: `status`, a stable `code`, and the request's `param` at fault ("": none)."""

    def __init__(
        self, status: int, code: str, message: str, *, param: str = "", headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.param = param
        self.headers = dict(headers or {})


def api_error(error: LegatoError) -> ApiError:
    """What a client is told of an error of the engine."""
    param = _PARAMS.get(error.field, error.field)
    if isinstance(error, QueueFullError):
        return ApiError(429, error.code, str(error), headers={"Retry-After": str(RETRY_AFTER_S)})
    if isinstance(error, EngineClosedError):
        return ApiError(503, error.code, str(error))
    if isinstance(error, TextTooLongError):
        return ApiError(422, error.code, str(error), param=param)
    if isinstance(error, InputError):
        return ApiError(400, error.code, str(error), param=param)
    if isinstance(error, GenerationError):
        return ApiError(500, error.code, str(error))
    log.error("an error of the engine reached a client: %s", error.code, exc_info=error)
    return ApiError(500, error.code, "the server failed; its log says more under this request's id")


def error_body(error: ApiError) -> dict[str, dict[str, str | None]]:
    """OpenAI's shape."""
    kinds = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}
    kind = "server_error" if error.status >= 500 else kinds.get(error.status, "invalid_request_error")
    return {"error": {"message": str(error), "type": kind, "param": error.param or None, "code": error.code}}


def error_response(error: ApiError) -> JSONResponse:
    """The whole answer."""
    return JSONResponse(error_body(error), status_code=error.status, headers=error.headers)


def register_error_handlers(app: FastAPI) -> None:
    """Make `app` answer every error in this shape."""

    def refuse(request: Request, error: ApiError) -> JSONResponse:
        request.state.refusal = error.code  # for the line that is logged of the request
        return error_response(error)

    async def api(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, ApiError)
        return refuse(request, error)

    async def legato(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, LegatoError)
        return refuse(request, api_error(error))

    async def http(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, StarletteHTTPException)
        if error.status_code not in _HTTP:
            return refuse(request, ApiError(error.status_code, "http_error", str(error.detail), headers=error.headers))
        code, message = _HTTP[error.status_code]
        told = message.format(method=request.method, path=request.scope["path"][:200])
        return refuse(request, ApiError(error.status_code, code, told, headers=error.headers))

    async def validation(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, RequestValidationError)
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"][1:])
        return refuse(request, ApiError(400, "invalid_request", f"{where}: {first['msg']}", param=where))

    async def unexpected(request: Request, error: Exception) -> JSONResponse:
        log.error("%s unexpected %s", request.state.request_id, type(error).__name__, exc_info=error)
        message = "the server failed; its log says more under this request's id"
        return refuse(request, ApiError(500, "internal_error", message))

    app.add_exception_handler(ApiError, api)
    app.add_exception_handler(LegatoError, legato)
    app.add_exception_handler(StarletteHTTPException, http)
    app.add_exception_handler(RequestValidationError, validation)
    app.add_exception_handler(Exception, unexpected)
