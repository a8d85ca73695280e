"""A client that disconnects, on any route and at any time, costs at most the talker step that is running.

The clients are raw sockets that are closed without a closing handshake. Row R28 of docs/faults.md.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterator

import pytest

from legato.engine.handle import StreamHandle
from legato.engine.model_runner import ModelRunner
from legato.engine.sequence import Sequence
from tests.server.running import Running, slots_free, wait_for
from tests.server.sockets import frame, handshake

LONG = "One more word and " * 12
REQUEST: dict[str, object] = {"input": LONG, "voice": "ryan", "max_new_tokens": 150, "response_format": "pcm"}

CloseClient = Callable[[], None]


def over_http(fields: dict[str, object]) -> Callable[[Running], CloseClient]:
    def start(server: Running) -> CloseClient:
        body = json.dumps({**REQUEST, **fields}).encode()
        raw = socket.create_connection(("127.0.0.1", server.port))
        raw.sendall(
            f"POST /v1/audio/speech HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body
        )
        return raw.close

    return start


def over_websocket(path: str, *messages: dict[str, object]) -> Callable[[Running], CloseClient]:
    def start(server: Running) -> CloseClient:
        raw = handshake(server, path)
        for message in messages:
            raw.sendall(frame(json.dumps(message)))
        return raw.close

    return start


def over_wyoming(server: Running) -> CloseClient:
    wait_for(lambda: server.state.wyoming_port is not None)
    assert server.state.wyoming_port is not None
    raw = socket.create_connection(("127.0.0.1", server.state.wyoming_port))
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
ROUTES: dict[str, Callable[[Running], CloseClient]] = {
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
    """The number of talker steps at each cancel that the engine receives."""
    seen: list[float] = []
    cancel = StreamHandle.cancel

    def watched(handle: StreamHandle) -> None:
        cancel(handle)
        seen.append(STEP_COUNTER[0]())

    monkeypatch.setattr(StreamHandle, "cancel", watched)
    return seen


STEP_COUNTER: list[Callable[[], float]] = []


@pytest.fixture(autouse=True)
def slow_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Delay each step, so that the utterance lasts seconds: without this a busy machine may finish it first."""
    step = ModelRunner.step

    def delayed(runner: ModelRunner, sequences: list[Sequence]) -> None:
        time.sleep(0.02)
        step(runner, sequences)

    monkeypatch.setattr(ModelRunner, "step", delayed)


@pytest.fixture
def server(request: pytest.FixtureRequest) -> Iterator[Running]:
    """The server for the route: only `reader` serves Wyoming."""
    route = request.node.callspec.params["route"]
    running = request.getfixturevalue("reader" if route == "wyoming" else "speaker")
    assert isinstance(running, Running)
    STEP_COUNTER[:] = [lambda: steps(running)]
    yield running
    wait_for(lambda: slots_free(running.tts))


def steps(server: Running) -> float:
    return server.tts.stats().rows["talker"].total


MOMENTS: dict[str, Callable[[Running, float], bool]] = {
    "before the first frame": lambda server, _: server.tts.stats().streams_open == 1,
    "during generation": lambda server, before: steps(server) >= before + 3,
}


@pytest.mark.parametrize("moment", list(MOMENTS))
@pytest.mark.parametrize("route", list(ROUTES))
def test_disconnect_costs_at_most_one_step(
    server: Running, route: str, moment: str, steps_at_cancel: list[float]
) -> None:
    before = steps(server)
    close_client = ROUTES[route](server)
    wait_for(lambda: MOMENTS[moment](server, before))
    close_client()
    wait_for(lambda: bool(steps_at_cancel), seconds=20)
    wait_for(lambda: slots_free(server.tts), seconds=20)
    assert steps(server) - steps_at_cancel[0] <= 1
    assert steps(server) - before < 140, "the utterance was generated to its end"


def test_control_connected_client_costs_all_steps(speaker: Running) -> None:
    """Negative control: the counter above counts the steps of a client that stays connected."""
    before = steps(speaker)
    close_client = over_http({"max_new_tokens": 20})(speaker)
    wait_for(lambda: steps(speaker) - before >= 19)
    wait_for(lambda: slots_free(speaker.tts))
    close_client()
