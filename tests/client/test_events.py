"""The client's parsers: events and samples, independent of how the network splits the bytes."""

from __future__ import annotations

import base64
import itertools
import json
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from legato.client.events import parse_events
from legato.client.http import Client, IncompleteResponseError, SpeechResponse, multipart_body, parse_error

BODIES = [
    {"type": "speech.audio.delta", "audio": base64.b64encode(b"abc").decode(), "text": "é\n"},
    {"type": "speech.audio.done", "usage": {"total_tokens": 3}},
]
STREAM = b": hello\r\n\r\n" + b"".join(
    f"event: x\ndata: {json.dumps(body, ensure_ascii=False)}\n\n".encode() for body in BODIES
)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, len(STREAM)), max_size=8))
def test_events_are_independent_of_chunking(cuts: list[int]) -> None:
    edges = [0, *sorted(cuts), len(STREAM)]
    blocks = [STREAM[start:end] for start, end in itertools.pairwise(edges)]
    events = list(parse_events(iter(blocks)))
    assert [event.body for event in events] == BODIES
    assert [event.audio for event in events] == [b"abc", b""]


class FakeResponse(SpeechResponse):
    """A response that arrives in the given blocks."""

    def __init__(self, blocks: list[bytes]) -> None:
        self._blocks = blocks

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._blocks)


@pytest.mark.parametrize("size", [1, 3, 4063])
def test_samples_are_independent_of_chunking(size: int) -> None:
    samples = np.arange(-5000, 5000, dtype="<i2")
    data = samples.tobytes()
    blocks = [data[start : start + size] for start in range(0, len(data), size)]
    assert np.array_equal(np.concatenate(list(FakeResponse(blocks).pcm())), samples)
    with pytest.raises(IncompleteResponseError, match="in the middle of a sample"):
        list(FakeResponse([data[:-1]]).pcm())
    assert np.array_equal(np.concatenate(list(FakeResponse(blocks).pcm())), samples)


def test_errors_are_parsed_in_any_format() -> None:
    body = b'{"error": {"message": "m", "type": "t", "param": null, "code": "c"}}'
    error = parse_error(429, body, "3")
    assert (error.status, error.code, str(error), error.param, error.retry_after_s) == (429, "c", "m", "", 3.0)
    assert parse_error(502, b"<html>", "0").code == "http_error"


def test_multipart_body_has_all_parts() -> None:
    form = multipart_body("XX", {"name": "Ann"}, b"\x00\xff")
    assert form.startswith(b'--XX\r\nContent-Disposition: form-data; name="name"\r\n\r\nAnn\r\n')
    assert form.endswith(b"\r\n\r\n\x00\xff\r\n--XX--\r\n")


def test_base_url_must_be_http() -> None:
    with pytest.raises(ValueError, match="http"):
        Client("localhost:8000")
