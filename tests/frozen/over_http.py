"""Transcripts of the HTTP routes: responses, headers, server-sent events, and errors."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping

import httpx

from tests.frozen.masks import Message, Transcript, masked
from tests.frozen.subjects import Subjects

SPEECH = "/v1/audio/speech"
REQUEST: Message = {"model": "tiny", "voice": "ryan", "input": "Some words.", "seed": 3, "max_new_tokens": 6}
PAGES = ("/health", "/ready", "/v1/models", "/v1/models/tiny", "/v1/audio/voices")
UNSTABLE = ("date", "server-timing", "x-request-id")
"""Headers of which only the presence is recorded."""

REFUSED: tuple[Message, ...] = (
    {"model": "gpt-5"},
    {"voice": "nobody"},
    {"voice": 7},
    {"language": "klingon"},
    {"response_format": "midi"},
    {"stream_format": "morse"},
    {"speed": 1.5},
    {"seed": -1},
    {"temperature": -1},
    {"max_new_tokens": 4000},
    {"sample_rate": 11_111},
    {"ref_audio": "UklGRg=="},
    {"input": "..."},
    {"input": "word " * 1001},
)
BROKEN: tuple[tuple[str, str, bytes, str], ...] = (
    ("POST", SPEECH, b"{", "application/json"),
    ("POST", SPEECH, b"<a/>", "application/xml"),
    ("PUT", SPEECH, b"", ""),
    ("GET", "/v1/nothing", b"", ""),
    ("GET", "/v1/models/gpt-5", b"", ""),
    ("GET", "/v1/requests/req_0", b"", ""),
    ("DELETE", "/v1/audio/voices/nobody", b"", ""),
)


def take(subjects: Subjects) -> object:
    """Responses of the speech route in every format, GET routes, and errors."""
    with httpx.Client(base_url=subjects.voices_url(), timeout=60) as web:
        return {
            "pages": {path: _page(web.get(path)) for path in PAGES},
            "formats": [_sound(web, fields) for fields in _formats()],
            "events": _events(web),
            "request": _request(web),
            "refused": [_refused(web.post(SPEECH, json={**REQUEST, **fields}), fields) for fields in REFUSED],
            "broken": [_broken(web, *case) for case in BROKEN],
        }


def take_words(subjects: Subjects) -> object:
    """Server-sent events with word times."""
    with httpx.Client(base_url=subjects.words_url(), timeout=60) as web:
        fields = {"input": "One two. Three!", "response_format": "pcm", "stream_format": "sse", "word_timestamps": True}
        return _transcript(web.post(SPEECH, json=fields).text)


def _formats() -> list[Message]:
    whole: list[Message] = [{"response_format": kind, "stream": False} for kind in ("pcm", "wav", "flac", "mp3")]
    streamed: list[Message] = [{"response_format": kind} for kind in ("pcm", "wav", "mp3")]
    return [*whole, *streamed, {"response_format": "wav", "sample_rate": 16_000, "stream": False, "unknown_field": 1}]


def _page(response: httpx.Response) -> object:
    return {
        "status": response.status_code,
        "headers": _headers(response, but=("content-length",)),
        "body": masked(response.json()),
    }


def _headers(response: httpx.Response, *, but: tuple[str, ...] = ()) -> dict[str, str]:
    items = ((name.lower(), value) for name, value in response.headers.items())
    return {name: "<any>" if name in UNSTABLE else value for name, value in sorted(items) if name not in but}


def _sound(web: httpx.Client, fields: Message) -> object:
    """The response and the start of its body. The length of compressed formats depends on the encoder's version."""
    response = web.post(SPEECH, json={**REQUEST, **fields})
    data = response.content
    exact = fields["response_format"] in ("pcm", "wav")
    begin = {"pcm": b"", "wav": data[:44], "flac": data[:4], "mp3": data[:2]}[str(fields["response_format"])]
    return {
        "fields": fields,
        "status": response.status_code,
        "headers": _headers(response, but=() if exact else ("content-length",)),
        "has_length": "content-length" in response.headers,
        "begin": begin.hex(),
        "bytes": len(data) if exact else "<bytes>",
    }


def _events(web: httpx.Client) -> object:
    response = web.post(SPEECH, json={**REQUEST, "response_format": "pcm", "stream_format": "sse"})
    return {"status": response.status_code, "headers": _headers(response), "events": _transcript(response.text)}


def _transcript(text: str) -> list[Message]:
    transcript = Transcript()
    assert text.endswith("\n\n")
    for line in text.removesuffix("\n\n").split("\n\n"):
        assert line.startswith("data: ")
        event = json.loads(line.removeprefix("data: "))
        if "audio" in event:
            samples = len(base64.b64decode(event.pop("audio"))) // 2
            transcript.audio(event["type"], samples, event)
        elif "words" in event:
            transcript.words(event["type"], event.pop("words"), event)
        else:
            transcript.add(event)
    return transcript.entries


def _request(web: httpx.Client) -> object:
    """The record of a finished request, with masked times."""
    response = web.post(SPEECH, json={**REQUEST, "response_format": "wav", "stream": False})
    return _page(web.get(f"/v1/requests/{response.headers['x-request-id']}"))


def _refused(response: httpx.Response, fields: Mapping[str, object]) -> object:
    shown = {name: value if len(str(value)) < 60 else "<long>" for name, value in fields.items()}
    return {"fields": shown, **_error(response)}


def _broken(web: httpx.Client, verb: str, path: str, content: bytes, kind: str) -> object:
    headers = {"content-type": kind} if kind else {}
    response = web.request(verb, path, content=content, headers=headers)
    return {"request": f"{verb} {path}", "content_type": kind, **_error(response)}


def _error(response: httpx.Response) -> Message:
    return {
        "status": response.status_code,
        "body": masked(response.json()),
        "has_id": "x-request-id" in response.headers,
    }
