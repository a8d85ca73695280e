"""Limits of one client and one connection, in simulated time: text silence, age, streams, utterances, silent events."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from legato.api import load
from legato.config.engine import EngineConfig
from legato.config.server import ServerConfig
from legato.engine.request import SpeechRequest
from legato.errors import InputError
from legato.server.client_limits import ClientLimitError, ClientStreams
from legato.server.dashscope.socket import RealtimeSocket
from legato.server.metrics import Metrics
from legato.server.speech_ws.socket import SpeechSocket
from tests.conftest import TinyCheckpoint
from tests.server.running import metric, running, wait_for
from tests.server.simulation import Faults, SimulatedSocket, Simulation
from tests.server.test_utterance_ends import STEPS, SpeechScript, Step, ends, realtime_steps


@pytest.fixture(scope="module")
def checkpoint(tiny_checkpoint: TinyCheckpoint) -> Path:
    return tiny_checkpoint("tiny-custom-voice")


def value(simulation: Simulation, name: str) -> float:
    """A metric."""
    return metric(simulation.state.metrics.text().decode(), name)


def server(**limits: float) -> ServerConfig:
    return ServerConfig(model_id="tiny", warm_up=False, **limits)  # type: ignore[arg-type]


def test_utterance_without_text_fails_after_the_stated_time_and_the_socket_goes_on(checkpoint: Path) -> None:
    simulation = Simulation(checkpoint, server=server(text_s=20.0))

    async def client() -> tuple[SimulatedSocket, float]:
        socket, closed = simulation.connect(SpeechSocket)
        socket.put({"type": "input.text", "text": "Half a"})
        await asyncio.sleep(15.0)
        socket.put({"type": "input.text", "text": " sentence"})
        await asyncio.sleep(19.0)
        assert not socket.of("error")
        await asyncio.sleep(2.0)
        (error,) = socket.of("error")
        assert (error["code"], error["utterance_index"]) == ("text_timeout", 0)
        socket.put({"type": "input.text", "text": " that is dropped."})
        socket.put({"type": "input.done"})
        socket.put({"type": "session.config", "max_new_tokens": 3})
        socket.put({"type": "input.text", "text": "Next."})
        socket.put({"type": "session.close"})
        await closed
        return socket, simulation.loop.time()

    socket, _ = simulation.run(client())
    assert [message["utterance_index"] for message in socket.of("session.done")] == [0, 1]
    assert value(simulation, 'legato_limit_reached_total{limit="text_s"}') == 1
    assert value(simulation, 'legato_limit{limit="text_s"}') == 20
    assert not simulation.engine.open


def test_client_that_listens_has_more_time_for_its_text(checkpoint: Path) -> None:
    """Its utterance is open, but there is audio to play: nothing waits for text."""
    simulation = Simulation(checkpoint, server=server(text_s=5.0))

    async def client() -> SimulatedSocket:
        socket, _ = simulation.connect(SpeechSocket)
        socket.put({"type": "session.config", "max_new_tokens": 150, "non_streaming_mode": False})
        socket.put({"type": "input.text", "text": "A long text. " * 60})
        await asyncio.sleep(11.0)
        socket.put({"type": "input.done"})
        await asyncio.sleep(30.0)
        return socket

    socket = simulation.run(client())
    assert not socket.of("error")
    assert [message["finish_reason"] for message in socket.of("audio.done")] == ["max_frames"]


@pytest.mark.parametrize("protocol", [SpeechSocket, RealtimeSocket])
def test_old_socket_is_closed_when_it_is_idle(checkpoint: Path, protocol: type[SpeechSocket]) -> None:
    simulation = Simulation(checkpoint, server=server(socket_s=100.0, drain_s=50.0))

    async def client(*, busy: bool) -> tuple[SimulatedSocket, float]:
        socket, closed = simulation.connect(protocol)
        await asyncio.sleep(95.0)
        if busy and protocol is SpeechSocket:
            socket.put({"type": "session.config", "max_new_tokens": 200})
            socket.put({"type": "input.text", "text": "A text that is still spoken."})
            socket.put({"type": "input.done"})
        started_s = simulation.loop.time()
        await closed
        return socket, simulation.loop.time() - started_s

    async def both() -> list[tuple[SimulatedSocket, float]]:
        return [await client(busy=False), await client(busy=True)]

    for socket, waited_s in simulation.run(both()):
        assert socket.code == 1001
        assert (socket.of("error")[-1].get("code") or socket.of("error")[-1]["error"]["code"]) == "socket_timeout"
        assert waited_s < 60
        for message in socket.of("audio.done"):
            assert message["finish_reason"] == "max_frames"  # it was spoken to its end first
    assert value(simulation, 'legato_limit_reached_total{limit="socket_s"}') == 2


def test_streams_of_one_client_are_limited_and_others_are_served() -> None:
    metrics = Metrics({}, {})
    clients = ClientStreams(2, metrics)
    with clients.stream("a"), clients.stream("b"):
        with (
            clients.stream("a"),
            pytest.raises(ClientLimitError, match="has 2 streams, and the limit is 2"),
            clients.stream("a"),
        ):
            pass
        assert b"legato_client_streams_max 1.0" in metrics.text()
        with clients.stream("a"):
            assert b"legato_client_streams_max 2.0" in metrics.text()
    assert not clients._streams
    assert b'legato_limit_reached_total{limit="client_streams"} 1.0' in metrics.text()


def test_session_has_two_streams_in_the_engine_whatever_it_queues(checkpoint: Path) -> None:
    """A long text in sentences must not fill the queue of the engine, which other clients need."""
    simulation = Simulation(checkpoint, engine=EngineConfig(max_num_seqs=1, max_queue=3, max_seq_len=256))

    async def client() -> tuple[SimulatedSocket, int]:
        socket, closed = simulation.connect(SpeechSocket)
        socket.put({"type": "session.config", "max_new_tokens": 5, "split_granularity": "sentence"})
        socket.put({"type": "input.text", "text": "One two. " * 30})
        socket.put({"type": "session.close"})
        most = 0
        while not closed.done():
            most = max(most, len(simulation.engine.open))
            await asyncio.sleep(0.01)
        return socket, most

    socket, most = simulation.run(client())
    assert len(socket.of("audio.done")) == 30
    assert not socket.of("error")
    assert most == 2


def test_utterances_of_a_socket_are_limited(checkpoint: Path) -> None:
    simulation = Simulation(checkpoint, server=server(socket_utterances=3))

    async def client() -> SimulatedSocket:
        socket, closed = simulation.connect(SpeechSocket)
        socket.put({"type": "session.config", "max_new_tokens": 5})
        for number in range(5):
            socket.put({"type": "input.text", "text": f"Number {number}."})
            socket.put({"type": "input.done"})
        await asyncio.sleep(30.0)
        socket.put({"type": "input.text", "text": "Accepted again."})
        socket.put({"type": "session.close"})
        await closed
        return socket

    socket = simulation.run(client())
    assert [error["code"] for error in socket.of("error")] == ["client_limit"] * 2
    assert len(socket.of("audio.done")) == 4
    assert value(simulation, 'legato_limit_reached_total{limit="socket_utterances"}') == 2


@pytest.mark.parametrize("name", ["text_s", "socket_s", "comment_s", "client_streams", "socket_utterances"])
@pytest.mark.parametrize("wrong", [0, -1, float("nan")])
def test_limits_must_be_positive(name: str, wrong: float) -> None:
    with pytest.raises(InputError, match=name):
        server(**{name: wrong})


# --- progress --------------------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(
    scripts=st.lists(st.tuples(STEPS, st.sampled_from(["none", "sentence", "realtime"])), min_size=1, max_size=4),
    slots=st.integers(1, 2),
    delays_s=st.lists(st.sampled_from([0.0, 0.4, 3.0]), max_size=8),
    read_s=st.lists(st.sampled_from([0.0, 0.05, 2.0]), min_size=4, max_size=4),
)
def test_every_utterance_of_every_client_ends_in_time(
    checkpoint: Path, scripts: list[tuple[list[Step], str]], slots: int, delays_s: list[float], read_s: list[float]
) -> None:
    """Clients that pause for text, read slowly, cancel, split and open in any order never wait for each other."""
    simulation = Simulation(
        checkpoint,
        engine=EngineConfig(max_num_seqs=slots, max_queue=8, max_seq_len=256),
        faults=Faults({(1, 0), (2, 3)}),
        delays_s=delays_s,
    )

    async def client(steps: list[Step], kind: str, read_s: float) -> None:
        if kind == "realtime":
            socket, closed = simulation.connect(RealtimeSocket, read_s=read_s)
            await realtime_steps(socket, "server_commit", steps)
            await closed
            created = [event["response"]["id"] for event in socket.of("response.created")]
            assert created == [event["response"]["id"] for event in socket.of("response.done")]
        else:
            socket, closed = simulation.connect(SpeechSocket, read_s=read_s)
            script = SpeechScript(socket, kind)
            await script.send(steps)
            await closed
            assert [index for group in ends(socket) for index in group] == list(range(script.utterances))
        assert socket.code == 1000

    async def abandoned() -> None:
        """A client that opens an utterance and sends nothing more, and one that reads nothing."""
        half, _ = simulation.connect(SpeechSocket)
        half.put({"type": "input.text", "text": "An utterance that stays open"})
        deaf, _ = simulation.connect(SpeechSocket, read_s=1000.0)
        deaf.put({"type": "session.config", "max_new_tokens": 200})
        deaf.put({"type": "input.text", "text": "A long text that nobody reads."})
        deaf.put({"type": "input.done"})
        await asyncio.sleep(0.1)

    async def all_clients() -> None:
        await abandoned()
        await asyncio.gather(*(client(*each, read_s[number]) for number, each in enumerate(scripts)))

    # The scripts sleep for up to 14 x 20 s, and a slow reader takes 2 s for each of its messages.
    simulation.run(all_clients(), limit_s=3000.0)
    assert not simulation.engine.parts.registry.streams() or simulation.engine.open


# --- events while a stream waits -------------------------------------------------------------------------------------


def test_event_stream_that_waits_for_a_slot_gets_comments(tiny_checkpoint: TinyCheckpoint) -> None:
    config = ServerConfig(model_id="tiny", warm_up=False, comment_s=0.1)
    with (
        load(tiny_checkpoint("tiny-custom-voice"), max_num_seqs=1, max_seq_len=256, yield_s=30.0) as tts,
        running(tts, config) as server,
    ):
        blocker = tts.open(SpeechRequest(voice="ryan"), whole_text=False)
        blocker.handle.append_text("Some words and more of them ")
        wait_for(lambda: tts.stats().codec_slots.free == 0)
        body = {"input": "Some words.", "voice": "ryan", "max_new_tokens": 2, "stream_format": "sse"}
        with (
            httpx.Client(timeout=60) as web,
            web.stream("POST", f"{server.url}/v1/audio/speech", json={**body, "response_format": "pcm"}) as answer,
        ):
            lines = answer.iter_lines()
            assert answer.status_code == 200
            assert next(lines) == ": waiting"
            blocker.handle.cancel()
            events = [json.loads(line[6:]) for line in lines if line.startswith("data: ")]
    assert [event["type"] for event in events][-1] == "speech.audio.done"
