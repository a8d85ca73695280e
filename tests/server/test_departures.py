"""On every route and at every moment: a client that leaves costs at most the step of the talker that was under way.

Clients here are raw sockets, closed without a word. Row R28 of the known faults.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator

import pytest

from legato.engine.handle import StreamHandle
from tests.server.running import Running, slots_free, wait_for
from tests.server.sockets import frame, handshake

LONG = "One more word and " * 12
ASKED: dict[str, object] = {"input": LONG, "voice": "ryan", "max_new_tokens": 150, "response_format": "pcm"}

Leave = Callable[[], None]


def over_http(fields: dict[str, object]) -> Callable[[Running], Leave]:
    def start(server: Running) -> Leave:
        body = json.dumps({**ASKED, **fields}).encode()
        raw = socket.create_connection(("127.0.0.1", server.port))
        raw.sendall(f"POST /v1/audio/speech HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
        return raw.close

    return start


def over_websocket(path: str, *messages: dict[str, object]) -> Callable[[Running], Leave]:
    def start(server: Running) -> Leave:
        raw = handshake(server, path)
        for message in messages:
            raw.sendall(frame(json.dumps(message)))
        return raw.close

    return start


def over_wyoming(server: Running) -> Leave:
    wait_for(lambda: bool(server.state.wyoming_ports))
    raw = socket.create_connection(("127.0.0.1", server.state.wyoming_ports[0]))
    raw.sendall(json.dumps({"type": "synthesize", "data": {"text": LONG}}).encode() + b"\n")
    return raw.close


SPEECH: list[dict[str, object]] = [
    {"type": "session.config", "voice": "ryan", "max_new_tokens": 150},
    {"type": "input.text", "text": LONG},
]
REALTIME: list[dict[str, object]] = [
    {"type": "session.update", "session": {"voice": "Serena", "max_new_tokens": 150}},
    {"type": "input_text_buffer.append", "text": LONG},
]
ROUTES: dict[str, Callable[[Running], Leave]] = {
    "bytes": over_http({}),
    "mp3": over_http({"response_format": "mp3"}),
    "events": over_http({"stream_format": "sse"}),
    "a whole file": over_http({"stream": False}),
    "speech socket, text open": over_websocket("/v1/audio/speech/stream", *SPEECH),
    "speech socket, text ended": over_websocket("/v1/audio/speech/stream", *SPEECH, {"type": "input.done"}),
    "realtime, text open": over_websocket("/api-ws/v1/realtime", *REALTIME),
    "realtime, text ended": over_websocket(
        "/api-ws/v1/realtime", *REALTIME, {"type": "input_text_buffer.commit"}, {"type": "session.finish"}
    ),
    "wyoming": over_wyoming,
}


@pytest.fixture
def steps_at_cancel(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The talker's steps so far, whenever the engine is told that a stream is not wanted any more."""
    seen: list[float] = []
    cancel = StreamHandle.cancel

    def watched(handle: StreamHandle) -> None:
        cancel(handle)
        seen.append(WATCHED[0]())

    monkeypatch.setattr(StreamHandle, "cancel", watched)
    return seen


WATCHED: list[Callable[[], float]] = []


@pytest.fixture
def server(request: pytest.FixtureRequest) -> Iterator[Running]:
    """The server that speaks the route: Wyoming is spoken beside the embedded front end alone."""
    wanted = request.node.callspec.params["route"]
    running = request.getfixturevalue("reader" if wanted == "wyoming" else "speaker")
    assert isinstance(running, Running)
    WATCHED[:] = [lambda: steps(running)]
    yield running
    wait_for(lambda: slots_free(running.tts))


def steps(server: Running) -> float:
    return server.tts.stats().rows["talker"].total


MOMENTS: dict[str, Callable[[Running, float], bool]] = {
    "before the first code": lambda server, _: server.tts.stats().streams_open == 1,
    "in its midst": lambda server, before: steps(server) >= before + 3,
}


@pytest.mark.parametrize("moment", list(MOMENTS))
@pytest.mark.parametrize("route", list(ROUTES))
def test_a_client_that_leaves_costs_one_step_at_most(
    server: Running, route: str, moment: str, steps_at_cancel: list[float]
) -> None:
    before = steps(server)
    leave = ROUTES[route](server)
    wait_for(lambda: MOMENTS[moment](server, before))
    leave()
    wait_for(lambda: bool(steps_at_cancel), seconds=20)
    wait_for(lambda: slots_free(server.tts), seconds=20)
    assert steps(server) - steps_at_cancel[0] <= 1
    assert steps(server) - before < 140, "it was spoken to its end"


def test_control_a_client_that_stays_costs_all_of_them(speaker: Running) -> None:
    """The figure that is compared above counts what it should."""
    before = steps(speaker)
    leave = over_http({"max_new_tokens": 20})(speaker)
    wait_for(lambda: steps(speaker) - before >= 19)
    wait_for(lambda: slots_free(speaker.tts))
    leave()
