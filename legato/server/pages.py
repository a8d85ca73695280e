"""The page at `/` and its files under `/web/`: read once when the application is made, served from memory.

Owns their bytes and digests for as long as the application lives. A browser keeps what it has and asks whether it is
still good, so a restart with other files is seen at once; what the page may load or call is this server alone. Knows
nothing of speech: the page uses the routes that every client uses.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response

from legato.server.errors import ApiError

FOLDER = Path(__file__).parent / "web"
MEDIA_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
"""The files that are served; another ending is not."""

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
"""No inline script or style, no other machine, no frame around it. The page's own WebSocket is `'self'` too."""

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
    """One file: its bytes, what they are, and their digest as an entity tag."""

    data: bytes
    media_type: str
    tag: str


def read_assets(folder: Path) -> dict[str, Asset]:
    """Every file of `folder` by its name."""
    files = sorted(path for path in folder.iterdir() if path.suffix in MEDIA_TYPES)
    return {path.name: _asset(path) for path in files}


def add_routes(app: FastAPI) -> None:
    """Make `app` serve the page. It is no part of the API, and stands in none of its lists."""
    assets = read_assets(FOLDER)

    async def page(request: Request) -> Response:
        return _answer(request, assets["index.html"])

    async def asset(request: Request) -> Response:
        found = assets.get(request.path_params["name"])
        if found is None:
            raise ApiError(404, "not_found", "the page has no such file")
        return _answer(request, found)

    app.add_route("/", page, include_in_schema=False)
    app.add_route("/web/{name}", asset, include_in_schema=False)


def _asset(path: Path) -> Asset:
    data = path.read_bytes()
    tag = hashlib.blake2b(data, digest_size=12).hexdigest()
    return Asset(data, MEDIA_TYPES[path.suffix], f'"{tag}"')


def _answer(request: Request, asset: Asset) -> Response:
    """The file, or 304 where the browser has it already."""
    headers = {**HEADERS, "ETag": asset.tag}
    known = [tag.strip().removeprefix("W/") for tag in request.headers.get("if-none-match", "").split(",")]
    if asset.tag in known or "*" in known:
        return Response(status_code=304, headers=headers)
    return Response(asset.data, media_type=asset.media_type, headers=headers)
