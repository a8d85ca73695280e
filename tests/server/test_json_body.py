"""The JSON parser of all routes: values, limits, and the time that costly documents take."""

from __future__ import annotations

import asyncio
import json
import time

import pytest

from legato.errors import InputError
from legato.server.fields import read_message
from legato.server.json_body import MAX_DEPTH, MAX_ELEMENTS, parse_json
from legato.server.wyoming.server import read_event

MIB = 2**20


def test_ordinary_documents_are_parsed() -> None:
    values: list[object] = [{}, [], "text", {"a": [1, 2.5, None, True, "é\n🙂"]}, {"n": -(10**60)}]
    for value in (*values, {"ref_audio": "A" * 20 * MIB}):
        assert parse_json(json.dumps(value).encode()) == value
    nested = b"[" * MAX_DEPTH + b"]" * MAX_DEPTH
    assert parse_json(nested) == json.loads(nested)
    assert parse_json(b'"' + b"\\/" * 100_000 + b'"') == "/" * 100_000
    assert parse_json(b'"\\ud83d\\ude42"') == "🙂"


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"[" + b"[]," * (10 * MIB) + b"[]]", "elements"),
        (b"[" * (20 * MIB), "elements"),
        (b'{"a":' * (5 * MIB), "elements"),
        (b"[" + b"0," * (15 * MIB) + b"0]", "elements"),
        (b"[" * 90_000, "nested"),
        (b'{"a":' * 90_000, "nested"),
        (b"[" * (MAX_DEPTH + 1) + b"]" * (MAX_DEPTH + 1), "nested"),
        (b'"' + b"\\n" * (15 * MIB) + b'"', "escaped"),
        (b'"' + b"\\u0041" * (5 * MIB) + b'"', "escaped"),
        (b"9" * (30 * MIB), "digits"),
        (b'{"a": ' + b"9" * 65 + b"}", "digits"),
        (b" " * (30 * MIB), "Expecting value"),
        (b"\xff" * (30 * MIB), "not UTF-8|Expecting value"),
        (b'{"a": "\\ud800"}', "surrogate"),
        (b'{"\\uD800": 1}', "surrogate"),
        (b"NaN", "NaN"),
        (b"{", "line 1, column 2"),
    ],
    ids=lambda value: repr(value[:12]),
)
def test_costly_documents_are_refused_quickly(data: bytes, reason: str) -> None:
    started_s = time.thread_time()
    with pytest.raises(ValueError, match=reason) as refused:
        parse_json(data)
    assert time.thread_time() - started_s < 1.0
    assert len(str(refused.value)) < 100
    assert "sys." not in str(refused.value)


def test_accepted_documents_of_the_limit_are_fast() -> None:
    for data in (b"[" + b"[]," * (MAX_ELEMENTS // 2 - 2) + b"0]", b'"' + b"\\/" * 900_000 + b"A" * 25 * MIB + b'"'):
        started_s = time.thread_time()
        parse_json(data)
        assert time.thread_time() - started_s < 1.0


COSTLY = (
    (b'{"type": "ping", "data": {"a": [' + b"[]," * 200_000 + b"[]]}}", "elements"),
    (b'{"type": "ping", "data": ' + b'{"a":' * 1000 + b"1" + b"}" * 1001, "nested"),
    (b'{"type": "ping", "data": {"a": ' + b"9" * 65 + b"}}", "digits"),
    (b'{"type": "ping", "data": {"a": "\\ud800"}}', "surrogate"),
)


@pytest.mark.parametrize(("data", "reason"), COSTLY, ids=lambda value: repr(value[:12]))
def test_messages_of_sockets_have_the_same_limits(data: bytes, reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        read_message(data.decode(), limit_bytes=MIB)

    async def wyoming(*lines: bytes) -> None:
        reader = asyncio.StreamReader(limit=MIB)
        for line in lines:
            reader.feed_data(line)
        with pytest.raises(InputError, match=reason):
            await read_event(reader)

    asyncio.run(wyoming(data + b"\n"))
    header = b'{"type": "ping", "data_length": %d}\n' % len(data)
    asyncio.run(wyoming(header, data))
