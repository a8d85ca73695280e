"""Error responses in OpenAI's format, with one HTTP status per kind of error.

Every Legato error has a stable code and may name a field. This module maps error classes to statuses and engine field
names to request field names. Internal failures become one sentence with the request id; the log has the cause.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.requests import ClientDisconnect

from legato.errors import (
    EngineClosedError,
    InputError,
    LegatoError,
    QueueFullError,
    StateError,
    TextTooLongError,
)

log = logging.getLogger("legato.server")

RETRY_AFTER_S = 1
"""`Retry-After` when the queue is full: streams end every few seconds."""

_PARAMS = {
    "text": "input",
    "clone": "ref_audio",
    "instruct": "instructions",
    "max_frames": "max_new_tokens",
    "format": "response_format",
    "layout": "non_streaming_mode",
}
"""Engine field -> request field, where the names differ."""


_ROUTING_ERRORS = {
    404: ("not_found", "no route {path}: see /docs for the available routes"),
    405: ("method_not_allowed", "{path} does not support {method}: see /docs for the available methods"),
}
"""Code and message for errors that the framework raises itself."""
MAX_MESSAGE = 600
"""Characters of an error message. Messages quote what the client sent, and are kept in the request's record."""


class ApiError(Exception):
    """An error response: HTTP `status`, stable `code`, and the request's `param` at fault ("": none)."""

    def __init__(
        self, status: int, code: str, message: str, *, param: str = "", headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(shortened(message, MAX_MESSAGE))
        self.status = status
        self.code = code
        self.param = param
        self.headers = dict(headers or {})


class ServerFailureError(LegatoError):
    """An internal failure as clients see it: one sentence with the request id. The log has the cause."""

    def __init__(self, message: str, *, code: str) -> None:
        super().__init__(message)
        self.code = code  # type: ignore[misc]  # the code of the cause


def shortened(text: str, limit: int) -> str:
    """`text`, or its beginning and "..." if it is longer than `limit` characters."""
    return text if len(text) <= limit else f"{text[: limit - 3]}..."


def public_error(error: LegatoError, request_id: str = "") -> LegatoError:
    """`error` if it is about the request. An internal failure is logged, and replaced by a sentence without internals.

    Messages of internal failures may have paths, addresses and names of our functions.
    """
    if isinstance(error, InputError | QueueFullError | StateError | ServerFailureError):
        return error
    log.error("%s %s: %s", request_id or "-", type(error).__name__, error, exc_info=error)
    stopped = isinstance(error, EngineClosedError)
    what = "the engine stopped before the end of the speech" if stopped else "speech generation failed"
    return ServerFailureError(f"{what} (request id {request_id or 'unknown'})", code=error.code)


def api_error(error: LegatoError, request_id: str = "") -> ApiError:
    """The response to an engine error. It has no internals (`public_error`)."""
    error = public_error(error, request_id)
    param = _PARAMS.get(error.field, error.field)
    if isinstance(error, QueueFullError):
        return ApiError(429, error.code, str(error), headers={"Retry-After": str(RETRY_AFTER_S)})
    if isinstance(error, ServerFailureError):
        return ApiError(503 if error.code == EngineClosedError.code else 500, error.code, str(error))
    if isinstance(error, StateError):
        return ApiError(409, error.code, str(error), param=param)
    if isinstance(error, TextTooLongError):
        return ApiError(422, error.code, str(error), param=param)
    return ApiError(400, error.code, str(error), param=param)


def error_body(error: ApiError) -> dict[str, dict[str, str | None]]:
    """The body of an error response, in OpenAI's format."""
    kinds = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}
    kind = "server_error" if error.status >= 500 else kinds.get(error.status, "invalid_request_error")
    return {"error": {"message": str(error), "type": kind, "param": error.param or None, "code": error.code}}


def error_response(error: ApiError) -> JSONResponse:
    """The complete error response."""
    return JSONResponse(error_body(error), status_code=error.status, headers=error.headers)


def internal_error(request_id: str) -> ApiError:
    """The response to an unexpected exception: no internals, only the id under which the log has them."""
    return ApiError(500, "internal_error", f"internal server error: the server log has details under {request_id}")


def register_error_handlers(app: FastAPI) -> None:
    """Make `app` report every error in this format. `AuthMiddleware` handles unexpected exceptions."""

    def respond(request: Request, error: ApiError) -> JSONResponse:
        request.state.error_code = error.code  # for the access log
        return error_response(error)

    async def on_api_error(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, ApiError)
        return respond(request, error)

    async def on_legato_error(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, LegatoError)
        return respond(request, api_error(error, request.state.request_id))

    async def on_http_error(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, StarletteHTTPException)
        if error.status_code not in _ROUTING_ERRORS:
            return respond(request, ApiError(error.status_code, "http_error", str(error.detail), headers=error.headers))
        code, message = _ROUTING_ERRORS[error.status_code]
        text = message.format(method=request.method, path=shortened(request.scope["path"], 200))
        return respond(request, ApiError(error.status_code, code, text, headers=error.headers))

    async def on_validation_error(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, RequestValidationError)
        first = error.errors()[0]
        field = shortened(".".join(str(part) for part in first["loc"][1:]), 80)
        return respond(request, ApiError(400, "invalid_request", f"{field}: {first['msg']}", param=field))

    async def on_client_disconnect(request: Request, error: Exception) -> JSONResponse:  # noqa: ARG001
        # The client left, or its body was late. No one receives this response; it is for the access log.
        return respond(request, ApiError(400, "incomplete_body", "the connection closed before the end of the body"))

    app.add_exception_handler(ApiError, on_api_error)
    app.add_exception_handler(LegatoError, on_legato_error)
    app.add_exception_handler(StarletteHTTPException, on_http_error)
    app.add_exception_handler(RequestValidationError, on_validation_error)
    app.add_exception_handler(ClientDisconnect, on_client_disconnect)
