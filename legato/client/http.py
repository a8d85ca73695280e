"""The HTTP side of the reference client: speech as bytes while it is made, or as events, and all other routes.

A `Client` knows an address and a key and owns no connection; each `SpeechBody` owns one until it is closed, and closing
it early is how a client leaves. Blocking; one thread a body. Knows no engine.
"""

from __future__ import annotations

import http.client
import json
import secrets
from collections.abc import Iterator, Mapping
from types import TracebackType
from urllib.parse import quote, urlsplit

import numpy as np
import numpy.typing as npt

from legato.client.events import SpeechEvent, events_of

_READ_BYTES = 64 * 1024


class ServerError(Exception):
    """The server's refusal: its status, its stable code, and the field at fault ("": none)."""

    def __init__(self, status: int, code: str, message: str, param: str = "", retry_after_s: float = 0.0) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.param = param
        self.retry_after_s = retry_after_s


class BrokenOffError(Exception):
    """The body ended before its end: what came of it is not the whole."""


class SpeechBody:
    """The body of one answer, as it comes. Use it as a context manager."""

    def __init__(self, connection: http.client.HTTPConnection, answer: http.client.HTTPResponse) -> None:
        self._connection = connection
        self._answer = answer

    @property
    def headers(self) -> http.client.HTTPMessage:
        """The answer's headers; their names in any case."""
        return self._answer.headers

    @property
    def request_id(self) -> str:
        """The server's id of the request."""
        return self._answer.headers.get("X-Request-Id", "")

    @property
    def sample_rate_hz(self) -> int:
        """Rate of the sound."""
        return int(self._answer.headers.get("X-Sample-Rate", "0"))

    def __iter__(self) -> Iterator[bytes]:
        """Bytes as they arrive. `BrokenOffError` when the server breaks off."""
        try:
            while data := self._answer.read1(_READ_BYTES):
                yield data
            if self._answer.length:
                raise BrokenOffError("the server closed the connection before the end of the body")
        except (http.client.HTTPException, ConnectionError) as error:
            raise BrokenOffError(f"the server broke off: {error}") from error

    def read(self) -> bytes:
        """All of it."""
        return b"".join(self)

    def pcm(self) -> Iterator[npt.NDArray[np.int16]]:
        """Samples of a pcm body, however the network cut its bytes."""
        left = b""
        for data in self:
            data = left + data
            whole = len(data) // 2 * 2
            left = data[whole:]
            if whole:
                yield np.frombuffer(data[:whole], dtype="<i2")
        if left:
            raise BrokenOffError("the body ended within a sample")

    def events(self) -> Iterator[SpeechEvent]:
        """The events of an sse body."""
        return events_of(iter(self))

    def close(self) -> None:
        """Leave; the server stops speaking if it still does."""
        self._answer.close()
        self._connection.close()

    def __enter__(self) -> SpeechBody:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Client:
    """A server's HTTP routes."""

    def __init__(self, base_url: str = "http://127.0.0.1:8000", *, api_key: str = "", timeout_s: float = 120.0) -> None:
        parts = urlsplit(base_url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"the server's address must be http://... or https://..., not {base_url!r}")
        self._tls = parts.scheme == "https"
        self._host, self._port = parts.hostname, parts.port
        self._prefix = parts.path.rstrip("/")
        self.headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        """Sent with every request."""
        self._timeout_s = timeout_s

    def speak(self, text: str, *, response_format: str = "pcm", **options: object) -> SpeechBody:
        """Start to speak; returns when the first sound is there. `options`: other fields of the request."""
        body = {"input": text, "response_format": response_format, **options}
        headers = {"Content-Type": "application/json"}
        return SpeechBody(*self._ask("POST", "/v1/audio/speech", json.dumps(body).encode(), headers))

    def speak_events(self, text: str, *, response_format: str = "pcm", **options: object) -> SpeechBody:
        """The same as server-sent events: read them from `events()`."""
        return self.speak(text, response_format=response_format, stream_format="sse", **options)

    def models(self) -> list[dict[str, object]]:
        """The model and its other names."""
        entries = self._json("GET", "/v1/models")["data"]
        assert isinstance(entries, list)
        return entries

    def voices(self) -> list[str]:
        """Names that `voice` may have."""
        names = self._json("GET", "/v1/audio/voices")["voices"]
        assert isinstance(names, list)
        return [str(name) for name in names]

    def upload_voice(self, name: str, recording: bytes, *, transcript: str = "") -> dict[str, object]:
        """Keep a recording as a voice."""
        boundary = secrets.token_hex(16)
        body = form_body(boundary, {"name": name, "ref_text": transcript}, recording)
        headers = {"Content-Type": f"multipart/form-data; boundary={boundary}"}
        return self._json("POST", "/v1/audio/voices", body, headers)

    def delete_voice(self, name: str) -> dict[str, object]:
        """Forget an uploaded voice."""
        return self._json("DELETE", f"/v1/audio/voices/{quote(name, safe='')}")

    def request(self, request_id: str) -> dict[str, object]:
        """What became of a request."""
        return self._json("GET", f"/v1/requests/{quote(request_id, safe='')}")

    def health(self) -> bool:
        """Whether the server answers."""
        return self._json("GET", "/health")["status"] == "ok"

    def ready(self) -> bool:
        """Whether the server takes new speech."""
        try:
            self._json("GET", "/ready")
        except (ServerError, OSError):
            return False
        return True

    def metrics(self) -> str:
        """Prometheus' text."""
        with SpeechBody(*self._ask("GET", "/metrics")) as body:
            return body.read().decode()

    def _json(
        self, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> dict[str, object]:
        with SpeechBody(*self._ask(method, path, body, headers or {})) as answer:
            value = json.loads(answer.read())
        assert isinstance(value, dict)
        return value

    def _ask(
        self, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        kind = http.client.HTTPSConnection if self._tls else http.client.HTTPConnection
        connection = kind(self._host, self._port, timeout=self._timeout_s)
        try:
            connection.request(method, self._prefix + path, body or None, {**self.headers, **(headers or {})})
            answer = connection.getresponse()
            if answer.status >= 400:
                raise refusal(answer.status, answer.read(), answer.headers.get("Retry-After", "0"))
        except BaseException:
            connection.close()
            raise
        return connection, answer


def refusal(status: int, body: bytes, retry_after: str) -> ServerError:
    """The error in an answer's body."""
    try:
        told = json.loads(body)["error"]
        return ServerError(status, str(told["code"]), str(told["message"]), told["param"] or "", float(retry_after))
    except (ValueError, KeyError, TypeError):
        return ServerError(status, "http_error", body.decode(errors="replace")[:300])


def form_body(boundary: str, fields: Mapping[str, str], recording: bytes) -> bytes:
    """A multipart form with text fields and one recording (RFC 7578)."""
    parts = [
        f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'.encode()
        for name, value in fields.items()
    ]
    head = f'--{boundary}\r\nContent-Disposition: form-data; name="audio_sample"; filename="voice"\r\n'
    parts += [f"{head}Content-Type: application/octet-stream\r\n\r\n".encode(), recording]
    return b"".join(parts) + f"\r\n--{boundary}--\r\n".encode()
