"""HTTP client: streaming speech as bytes or events, and all other routes.

A `Client` holds the address and API key and opens one connection per request. Each `SpeechResponse` owns its connection
until it is closed; closing it early cancels the request. Blocking; use each response from one thread.
"""

from __future__ import annotations

import http.client
import json
import secrets
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from urllib.parse import quote, urlsplit

import numpy as np
import numpy.typing as npt

from legato.client.events import SpeechEvent, parse_events

_READ_BYTES = 64 * 1024
_JSON = {"Content-Type": "application/json"}


class ServerError(Exception):
    """An error response: HTTP status, stable code, and the parameter at fault ("": none)."""

    def __init__(self, status: int, code: str, message: str, param: str = "", retry_after_s: float = 0.0) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.param = param
        self.retry_after_s = retry_after_s


class IncompleteResponseError(Exception):
    """The response ended early: the audio received so far is not complete."""


class SpeechResponse:
    """A streaming response. Use it as a context manager."""

    def __init__(self, connection: http.client.HTTPConnection, response: http.client.HTTPResponse) -> None:
        self._connection = connection
        self._response = response

    @property
    def headers(self) -> http.client.HTTPMessage:
        """The response headers (case-insensitive)."""
        return self._response.headers

    @property
    def request_id(self) -> str:
        """The request id assigned by the server."""
        return self._response.headers.get("X-Request-Id", "")

    @property
    def sample_rate_hz(self) -> int:
        """Sample rate of the audio."""
        return int(self._response.headers.get("X-Sample-Rate", "0"))

    def __iter__(self) -> Iterator[bytes]:
        """Yield bytes as they arrive. Raises `IncompleteResponseError` if the server aborts the response."""
        try:
            while data := self._response.read1(_READ_BYTES):
                yield data
            if self._response.length:
                raise IncompleteResponseError("the server closed the connection before the end of the body")
        except (http.client.HTTPException, ConnectionError) as error:
            raise IncompleteResponseError(f"the server aborted the response: {error}") from error

    def read(self) -> bytes:
        """Read the whole body."""
        return b"".join(self)

    def pcm(self) -> Iterator[npt.NDArray[np.int16]]:
        """Yield the samples of a pcm response, wherever the network splits the bytes."""
        rest = b""
        for received in self:
            data = rest + received
            complete = len(data) // 2 * 2
            rest = data[complete:]
            if complete:
                yield np.frombuffer(data[:complete], dtype="<i2")
        if rest:
            raise IncompleteResponseError("the body ended in the middle of a sample")

    def lines(self) -> Iterator[bytes]:
        """Yield the lines of the body, without their ends."""
        rest = b""
        for received in self:
            *lines, rest = (rest + received).split(b"\n")
            yield from lines
        if rest:
            yield rest

    def events(self) -> Iterator[SpeechEvent]:
        """Yield the server-sent events of the response."""
        return parse_events(iter(self))

    def close(self) -> None:
        """Close the connection. The server cancels the request if it is still running."""
        self._response.close()
        self._connection.close()

    def __enter__(self) -> SpeechResponse:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Client:
    """Client of one server."""

    def __init__(self, base_url: str = "http://127.0.0.1:8000", *, api_key: str = "", timeout_s: float = 120.0) -> None:
        parts = urlsplit(base_url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"base_url must start with http:// or https:// and name a host, not {base_url!r}")
        self._tls = parts.scheme == "https"
        self._host, self._port = parts.hostname, parts.port
        self._prefix = parts.path.rstrip("/")
        self.headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        """Sent with every request."""
        self._timeout_s = timeout_s

    def speak(self, text: str, *, response_format: str = "pcm", **options: object) -> SpeechResponse:
        """Synthesize `text`; returns when the response starts. `options`: other fields of the request body."""
        body = {"input": text, "response_format": response_format, **options}
        return self._send("POST", "/v1/audio/speech", json.dumps(body).encode(), _JSON)

    def speak_events(self, text: str, *, response_format: str = "pcm", **options: object) -> SpeechResponse:
        """Like `speak`, with server-sent events: read them with `events()`."""
        return self.speak(text, response_format=response_format, stream_format="sse", **options)

    def speak_batch(
        self, items: Sequence[str | Mapping[str, object]], **options: object
    ) -> Iterator[dict[str, object]]:
        """Synthesize many texts; yields the results as they are ready. The audio of each is in `audio_data` (base64).

        `items`: texts, or objects with `input` and options of their own. `options`: for all items.
        """
        body = {"items": list(items), **options, "output": "jsonl"}
        with self._send("POST", "/v1/audio/speech/batch", json.dumps(body).encode(), _JSON) as response:
            for line in response.lines():
                result = json.loads(line)
                if "index" in result:
                    yield result

    def models(self) -> list[dict[str, object]]:
        """The entries of `/v1/models`: the loaded model, then its aliases."""
        entries = self._json("GET", "/v1/models")["data"]
        assert isinstance(entries, list)
        return entries

    def voices(self) -> list[str]:
        """Accepted values of `voice`."""
        names = self._json("GET", "/v1/audio/voices?format=names")["voices"]
        assert isinstance(names, list)
        return [str(name) for name in names]

    def upload_voice(self, name: str, recording: bytes, *, transcript: str = "") -> dict[str, object]:
        """Upload a recording as a voice."""
        boundary = secrets.token_hex(16)
        body = multipart_body(boundary, {"name": name, "ref_text": transcript}, recording)
        headers = {"Content-Type": f"multipart/form-data; boundary={boundary}"}
        return self._json("POST", "/v1/audio/voices", body, headers)

    def delete_voice(self, name: str) -> dict[str, object]:
        """Delete an uploaded voice."""
        return self._json("DELETE", f"/v1/audio/voices/{quote(name, safe='')}")

    def request(self, request_id: str) -> dict[str, object]:
        """The record of a request: status, outcome and timing."""
        return self._json("GET", f"/v1/requests/{quote(request_id, safe='')}")

    def health(self) -> bool:
        """Whether the server responds."""
        return self._json("GET", "/health")["status"] == "ok"

    def ready(self) -> bool:
        """Whether the server accepts new requests."""
        try:
            self._json("GET", "/ready")
        except (ServerError, OSError):
            return False
        return True

    def metrics(self) -> str:
        """The metrics in Prometheus' text format."""
        with self._send("GET", "/metrics") as response:
            return response.read().decode()

    def _json(
        self, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> dict[str, object]:
        with self._send(method, path, body, headers) as response:
            value = json.loads(response.read())
        assert isinstance(value, dict)
        return value

    def _send(
        self, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> SpeechResponse:
        kind = http.client.HTTPSConnection if self._tls else http.client.HTTPConnection
        connection = kind(self._host, self._port, timeout=self._timeout_s)
        try:
            connection.request(method, self._prefix + path, body or None, {**self.headers, **(headers or {})})
            response = connection.getresponse()
            if response.status >= 400:
                raise parse_error(response.status, response.read(), response.headers.get("Retry-After", "0"))
        except BaseException:
            connection.close()
            raise
        return SpeechResponse(connection, response)


def parse_error(status: int, body: bytes, retry_after: str) -> ServerError:
    """The error of an error response; the raw body if it is not in the server's format."""
    try:
        error = json.loads(body)["error"]
        return ServerError(status, str(error["code"]), str(error["message"]), error["param"] or "", float(retry_after))
    except (ValueError, KeyError, TypeError):
        return ServerError(status, "http_error", body.decode(errors="replace")[:300])


def multipart_body(boundary: str, fields: Mapping[str, str], recording: bytes) -> bytes:
    """A multipart/form-data body with text fields and one recording (RFC 7578)."""
    parts = [
        f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'.encode()
        for name, value in fields.items()
    ]
    head = f'--{boundary}\r\nContent-Disposition: form-data; name="audio_sample"; filename="voice"\r\n'
    parts += [f"{head}Content-Type: application/octet-stream\r\n\r\n".encode(), recording]
    return b"".join(parts) + f"\r\n--{boundary}--\r\n".encode()
