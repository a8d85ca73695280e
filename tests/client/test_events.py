"""The client's readers: events and samples, however the network cuts their bytes."""

from __future__ import annotations

import base64
import itertools
import json
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from legato.client.events import events_of
from legato.client.http import BrokenOffError, Client, SpeechBody, form_body, refusal

BODIES = [
    {"type": "speech.audio.delta", "audio": base64.b64encode(b"abc").decode(), "text": "é\n"},
    {"type": "speech.audio.done", "usage": {"total_tokens": 3}},
]
STREAM = b": hello\r\n\r\n" + b"".join(
    f"event: x\ndata: {json.dumps(body, ensure_ascii=False)}\n\n".encode() for body in BODIES
)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, len(STREAM)), max_size=8))
def test_events_do_not_depend_on_the_cuts(cuts: list[int]) -> None:
    edges = [0, *sorted(cuts), len(STREAM)]
    pieces = [STREAM[start:end] for start, end in itertools.pairwise(edges)]
    events = list(events_of(iter(pieces)))
    assert [event.body for event in events] == BODIES
    assert [event.audio for event in events] == [b"abc", b""]


class Pieces(SpeechBody):
    """A body that comes in given pieces."""

    def __init__(self, pieces: list[bytes]) -> None:
        self._pieces = pieces

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._pieces)


@pytest.mark.parametrize("size", [1, 3, 4063])
def test_samples_do_not_depend_on_the_cuts_and_no_byte_outlives_its_stream(size: int) -> None:
    samples = np.arange(-5000, 5000, dtype="<i2")
    data = samples.tobytes()
    pieces = [data[start : start + size] for start in range(0, len(data), size)]
    assert np.array_equal(np.concatenate(list(Pieces(pieces).pcm())), samples)
    with pytest.raises(BrokenOffError, match="within a sample"):
        list(Pieces([data[:-1]]).pcm())
    assert np.array_equal(np.concatenate(list(Pieces(pieces).pcm())), samples)


def test_refusals_are_read_in_any_shape() -> None:
    body = b'{"error": {"message": "m", "type": "t", "param": null, "code": "c"}}'
    error = refusal(429, body, "3")
    assert (error.status, error.code, str(error), error.param, error.retry_after_s) == (429, "c", "m", "", 3.0)
    assert refusal(502, b"<html>", "0").code == "http_error"


def test_a_form_holds_its_parts() -> None:
    form = form_body("XX", {"name": "Ann"}, b"\x00\xff")
    assert form.startswith(b'--XX\r\nContent-Disposition: form-data; name="name"\r\n\r\nAnn\r\n')
    assert form.endswith(b"\r\n\r\n\x00\xff\r\n--XX--\r\n")


def test_an_address_must_be_one() -> None:
    with pytest.raises(ValueError, match="http"):
        Client("localhost:8000")
