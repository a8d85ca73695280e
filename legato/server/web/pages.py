"""Serve the web page at `/` and its static files under `/web/`.

The application reads the files once at start-up and serves them from memory. Browsers revalidate their cached copies by
ETag, so a restart with changed files takes effect immediately. The content security policy allows only this server.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response

from legato.server.errors import ApiError

FOLDER = Path(__file__).parent / "static"
MEDIA_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
"""Files with other extensions are not served."""

CONTENT_SECURITY_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
"""No inline scripts or styles, no other hosts, no framing. `'self'` includes the page's WebSocket."""

HEADERS = {
    "Cache-Control": "no-cache",
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "microphone=(self), camera=(), geolocation=()",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


@dataclass(frozen=True, slots=True)
class Asset:
    """A static file: content, media type, and digest as ETag."""

    data: bytes
    media_type: str
    etag: str


def read_assets(folder: Path) -> dict[str, Asset]:
    """Read all servable files of `folder`, by file name."""
    files = sorted(path for path in folder.iterdir() if path.suffix in MEDIA_TYPES)
    return {path.name: _asset(path) for path in files}


def add_routes(app: FastAPI) -> None:
    """Add the page's routes to `app`. They are not part of the OpenAPI document."""
    assets = read_assets(FOLDER)

    async def page(request: Request) -> Response:
        return _respond(request, assets["index.html"])

    async def asset(request: Request) -> Response:
        found = assets.get(request.path_params["name"])
        if found is None:
            raise ApiError(404, "not_found", f"the page has no file {request.path_params['name'][:80]!r}")
        return _respond(request, found)

    app.add_route("/", page, include_in_schema=False)
    app.add_route("/web/{name}", asset, include_in_schema=False)


def _asset(path: Path) -> Asset:
    data = path.read_bytes()
    etag = hashlib.blake2b(data, digest_size=12).hexdigest()
    return Asset(data, MEDIA_TYPES[path.suffix], f'"{etag}"')


def _respond(request: Request, asset: Asset) -> Response:
    """The file, or 304 if the client has the current version."""
    headers = {**HEADERS, "ETag": asset.etag}
    cached = [tag.strip().removeprefix("W/") for tag in request.headers.get("if-none-match", "").split(",")]
    if asset.etag in cached or "*" in cached:
        return Response(status_code=304, headers=headers)
    return Response(asset.data, media_type=asset.media_type, headers=headers)
