"""Static files of the web page (media types, caching, content security policy), and playback reports.

`tests/browser` tests the page in a browser.
"""

from __future__ import annotations

import re

import httpx
import pytest

from legato.server.web.pages import CONTENT_SECURITY_POLICY, FOLDER, MEDIA_TYPES
from tests.server.running import Running
from tests.server.sockets import OPTIONS

REPORT = {"first_bytes_ms": 80.5, "first_sound_ms": 95, "first_audible_ms": 120.25, "underruns": 1, "underrun_ms": 40.0}


def test_every_file_has_media_type_policy_and_etag(speaker: Running) -> None:
    names = [path.name for path in FOLDER.iterdir()]
    assert {"index.html", "main.js", "queue-worklet.js", "style.css"} <= set(names)
    with httpx.Client(base_url=speaker.url) as client:
        for path in ("", *(f"web/{name}" for name in names)):
            answer = client.get(f"/{path}")
            assert answer.status_code == 200, path
            assert answer.headers["content-type"] == MEDIA_TYPES["." + (path or "index.html").rpartition(".")[2]]
            assert answer.headers["content-security-policy"] == CONTENT_SECURITY_POLICY
            assert answer.headers["cache-control"] == "no-cache"
            assert answer.headers["x-content-type-options"] == "nosniff"
            again = client.get(f"/{path}", headers={"If-None-Match": answer.headers["etag"]})
            assert (again.status_code, again.content) == (304, b"")
            other = client.get(f"/{path}", headers={"If-None-Match": '"other"'})
            assert other.content == answer.content


def test_policy_allows_only_the_own_origin_and_nothing_inline() -> None:
    sources = dict(part.split(" ", 1) for part in CONTENT_SECURITY_POLICY.split("; "))
    assert sources.pop("default-src") == "'none'"
    assert set(sources.values()) == {"'self'", "'none'"}
    assert {"script-src", "style-src", "connect-src", "frame-ancestors"} <= set(sources)


@pytest.mark.parametrize("name", ["nothing.js", "../pages.py", "..%2fpages.py", "%2e%2e/app.py", ""])
def test_no_other_files_are_served(speaker: Running, name: str) -> None:
    answer = httpx.get(f"{speaker.url}/web/{name}")
    assert answer.status_code == 404
    assert "import" not in answer.text


def test_page_is_not_in_the_openapi_schema(speaker: Running) -> None:
    paths = httpx.get(f"{speaker.url}/openapi.json").json()["paths"]
    assert not [path for path in paths if path == "/" or path.startswith("/web")]
    assert "/v1/requests/{request_id}/playout" in paths


def test_files_have_no_external_links() -> None:
    for path in FOLDER.iterdir():
        found = re.findall(r"https?://[^\s\"'`<>)]+", path.read_text(encoding="utf-8"))
        assert set(found) <= {"http://www.w3.org/2000/svg"}, path.name


def test_files_are_small_and_have_a_head_comment() -> None:
    """The rules for Python files, applied to the page."""
    for path in FOLDER.iterdir():
        text = path.read_text(encoding="utf-8")
        assert len(text.splitlines()) <= 300, path.name
        if path.suffix in (".js", ".css"):
            assert text.startswith(("// ", "/* ")), path.name
            assert len(re.findall(r"[.!?](?=\s|$)", text[:900])) >= 2, path.name


# --- playback reports ------------------------------------------------------------------------------------------------


def finished_request(server: Running) -> str:
    """The id of a finished request."""
    body = {"input": "Some words.", "response_format": "pcm", **OPTIONS}
    return httpx.post(f"{server.url}/v1/audio/speech", json=body, timeout=60).headers["x-request-id"]


def test_playback_report_is_stored_in_the_record(speaker: Running) -> None:
    request_id = finished_request(speaker)
    address = f"{speaker.url}/v1/requests/{request_id}"
    assert httpx.get(address).json()["playout"] == {}
    assert httpx.post(f"{address}/playout", json={"first_bytes_ms": 1, "first_sound_ms": 2}).status_code == 204
    assert httpx.get(address).json()["playout"]["first_sound_ms"] == 2
    assert httpx.post(f"{address}/playout", json=REPORT).status_code == 204
    assert httpx.get(address).json()["playout"] == REPORT


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"first_sound_ms": "95"}, "first_sound_ms"),
        ({"first_sound_ms": -1}, "first_sound_ms"),
        ({"first_sound_ms": None}, "first_sound_ms"),
        ({"underruns": 1.5}, "underruns"),
        ({"note": "x" * 100}, "note"),
        ({"first_bytes_ms": 10**9}, "first_bytes_ms"),
    ],
)
def test_invalid_playback_report_is_rejected_and_not_stored(
    speaker: Running, change: dict[str, object], field: str
) -> None:
    address = f"{speaker.url}/v1/requests/{finished_request(speaker)}"
    answer = httpx.post(f"{address}/playout", json={**REPORT, **change})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == field
    assert httpx.get(address).json()["playout"] == {}


def test_playback_report_of_unknown_request_is_404(speaker: Running) -> None:
    answer = httpx.post(f"{speaker.url}/v1/requests/req_unknown/playout", json=REPORT)
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "unknown_request")
