"""Every accepted utterance ends exactly once and in order, on every protocol, however it ends.

The tests run in simulated time (`simulation.py`): hypothesis chooses what the client does, when, and which streams
fail, end early, or find the queue full.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from wyoming.event import Event, async_read_event

from legato.config.engine import EngineConfig
from legato.server.dashscope.socket import RealtimeSocket
from legato.server.speech_ws.socket import SpeechSocket
from legato.server.wyoming.server import WyomingConnection
from legato.session.playback import PlaybackLimits
from tests.conftest import TinyCheckpoint
from tests.server.simulation import Faults, SimulatedSocket, Simulation

FAULTS = frozenset({(1, 0), (2, 3)})
"""(seed, frame): streams of these seeds fail."""
TEXTS = ("Hello there.", "One. Two. Three.", " and more", "!!", "")
PATIENCE_S = 5000.0
"""Simulated seconds after which a client that still waits has found a hang."""

Step = tuple[str, Any]
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("text"), st.sampled_from(TEXTS)),
        st.tuples(st.just("replace"), st.sampled_from(TEXTS[:2])),
        st.tuples(st.sampled_from(["done", "commit", "cancel"]), st.none()),
        st.tuples(st.just("sleep"), st.sampled_from([0.0, 0.1, 1.0, 20.0])),
        st.tuples(st.just("limit"), st.integers(1, 9)),
        st.tuples(st.just("seed"), st.integers(0, 3)),
    ),
    max_size=14,
)
SMALL = EngineConfig(max_num_seqs=1, max_queue=1, max_seq_len=256)


@pytest.fixture(scope="module")
def checkpoint(tiny_checkpoint: TinyCheckpoint) -> Path:
    return tiny_checkpoint("tiny-custom-voice")


async def hold_queue(simulation: Simulation) -> None:
    """Another client that opens an utterance, fills the queue of `SMALL`, and sends nothing more."""
    socket, _ = simulation.connect(SpeechSocket)
    socket.put({"type": "input.text", "text": "A text that is not"})
    other, _ = simulation.connect(SpeechSocket)
    other.put({"type": "input.text", "text": "finished"})
    await asyncio.sleep(0.5)


# --- the speech socket -----------------------------------------------------------------------------------------------


@dataclass
class SpeechScript:
    """Sends the steps of a client and counts the utterances that the server must end."""

    socket: SimulatedSocket
    split: str
    utterances: int = 0
    text_open: bool = False
    options: dict[str, object] = field(default_factory=lambda: {"max_new_tokens": 4, "seed": 0})

    async def send(self, steps: Sequence[Step]) -> None:
        self._configure()
        for kind, value in steps:
            if kind == "sleep":
                await asyncio.sleep(value)
            elif kind in ("limit", "seed"):
                self.options["max_new_tokens" if kind == "limit" else "seed"] = value
                self._configure()  # refused while text is open
            elif kind in ("text", "replace"):
                self._text(value, replaces=kind == "replace")
            else:
                self._end(kind)
        self.socket.put({"type": "session.close"})

    def _configure(self) -> None:
        self.socket.put({"type": "session.config", "voice": "ryan", "split_granularity": self.split, **self.options})

    def _text(self, text: str, *, replaces: bool) -> None:
        self.socket.put({"type": "input.text", "text": text, "replace": replaces})
        self.utterances += replaces or not self.text_open
        self.text_open = True

    def _end(self, kind: str) -> None:
        self.socket.put({"type": f"input.{kind}"})
        self.utterances += kind == "done" and not self.text_open  # an empty one
        self.text_open = False


def ends(socket: SimulatedSocket) -> list[list[int]]:
    """The utterances that each message ends for the first time. One cancel and what follows directly are one group."""
    groups: list[list[int]] = []
    ended: set[int] = set()
    after_cancel = False
    for message in socket.of("session.done", "input.cancelled", "audio.start", "error"):
        named = [message["utterance_index"]] if message["type"] == "session.done" else []
        named += [each["utterance_index"] for each in message.get("utterances", [])]
        new = [index for index in dict.fromkeys(named) if index not in ended]
        ended.update(new)
        if after_cancel and message["type"] == "session.done":
            groups[-1] = sorted(groups[-1] + new)
        else:
            groups.append(new)
            after_cancel = message["type"] == "input.cancelled"
    return [group for group in groups if group]


@settings(max_examples=60, deadline=None)
@given(
    steps=STEPS,
    split=st.sampled_from(["none", "sentence"]),
    busy=st.booleans(),
    delays_s=st.lists(st.sampled_from([0.0, 0.4, 3.0]), max_size=5),
    read_s=st.sampled_from([0.0, 0.05]),
)
def test_every_utterance_of_the_speech_socket_ends_once_and_in_order(
    checkpoint: Path, steps: list[Step], split: str, busy: bool, delays_s: list[float], read_s: float
) -> None:
    simulation = Simulation(checkpoint, engine=SMALL, faults=Faults(set(FAULTS)), delays_s=delays_s)

    async def client() -> SpeechScript:
        if busy:
            await hold_queue(simulation)
        socket, closed = simulation.connect(SpeechSocket, read_s=read_s)
        script = SpeechScript(socket, split)
        await script.send(steps)
        await closed
        return script

    script = simulation.run(client(), limit_s=PATIENCE_S)
    assert script.socket.code == 1000
    assert [index for group in ends(script.socket) for index in group] == list(range(script.utterances))
    done = Counter(message["utterance_index"] for message in script.socket.of("session.done"))
    assert max(done.values(), default=1) == 1


@pytest.mark.parametrize("reason", ["queue_full", "max_frames", "failed"])
def test_utterance_that_ends_before_its_text_is_done_after_its_text(checkpoint: Path, reason: str) -> None:
    """The smallest case: text, an early end, more text, `input.done`."""
    simulation = Simulation(checkpoint, engine=SMALL, faults=Faults(set(FAULTS)))

    async def client() -> SimulatedSocket:
        if reason == "queue_full":
            await hold_queue(simulation)
        socket, _ = simulation.connect(SpeechSocket)
        seed = 1 if reason == "failed" else 0
        socket.put({"type": "session.config", "voice": "ryan", "max_new_tokens": 2, "seed": seed})
        socket.put({"type": "input.text", "text": "Hello there, this is a text "})
        await asyncio.sleep(5.0)
        socket.put({"type": "input.text", "text": "that goes on."})
        await asyncio.sleep(1.0)
        socket.put({"type": "input.done"})
        await asyncio.sleep(1.0)
        return socket

    socket = simulation.run(client())
    (done,) = socket.of("session.done")
    assert (done["utterance_index"], done["total_sentences"]) == (0, 1)
    if reason == "max_frames":
        assert [message["finish_reason"] for message in socket.of("audio.done")] == ["max_frames"]
    else:
        (error,) = socket.of("error")
        assert (error["utterance_index"], error["sentence_index"]) == (0, 0)


def test_failure_of_a_later_utterance_waits_for_the_end_of_the_earlier_one(checkpoint: Path) -> None:
    simulation = Simulation(checkpoint, faults=Faults({(1, 0)}))

    async def client() -> SimulatedSocket:
        socket, closed = simulation.connect(SpeechSocket)
        for seed, frames in ((0, 60), (1, 60)):
            socket.put({"type": "session.config", "voice": "ryan", "max_new_tokens": frames, "seed": seed})
            socket.put({"type": "input.text", "text": "!!" if seed else "A long first utterance."})
            socket.put({"type": "input.done"})
        socket.put({"type": "session.close"})
        await closed
        return socket

    socket = simulation.run(client())
    kinds = [(m["type"], m.get("utterance_index")) for m in socket.of("audio.done", "session.done", "error")]
    assert kinds == [("audio.done", 0), ("session.done", 0), ("error", 1), ("session.done", 1)]


# --- DashScope -------------------------------------------------------------------------------------------------------


async def realtime_steps(socket: SimulatedSocket, mode: str, steps: Sequence[Step]) -> None:
    """Send the steps as a DashScope client."""
    session: dict[str, object] = {"voice": "ryan", "mode": mode, "max_new_tokens": 4}
    socket.put({"type": "session.update", "session": session})
    for kind, value in steps:
        if kind == "sleep":
            await asyncio.sleep(value)
        elif kind in ("limit", "seed"):
            session["max_new_tokens" if kind == "limit" else "seed"] = value
            socket.put({"type": "session.update", "session": session})
        elif kind in ("text", "replace"):
            socket.put({"type": "input_text_buffer.append", "text": value})
        else:
            names = {"done": "input_text_buffer.commit", "commit": "input_text_buffer.clear"}
            socket.put({"type": names.get(kind, "response.cancel")})
    socket.put({"type": "session.finish"})


@settings(max_examples=60, deadline=None)
@given(steps=STEPS, mode=st.sampled_from(["server_commit", "commit"]), busy=st.booleans())
def test_every_response_ends_once_and_none_interleave(
    checkpoint: Path, steps: list[Step], mode: str, busy: bool
) -> None:
    simulation = Simulation(checkpoint, engine=SMALL, faults=Faults(set(FAULTS)))

    async def client() -> SimulatedSocket:
        if busy:
            await hold_queue(simulation)
        socket, closed = simulation.connect(RealtimeSocket)
        await realtime_steps(socket, mode, steps)
        await closed
        return socket

    socket = simulation.run(client(), limit_s=PATIENCE_S)
    assert socket.code == 1000
    assert [message["type"] for message in socket.sent[-2:]] == ["session.finished", "(close)"]
    events = socket.of("response.created", "response.done")
    assert [event["type"] for event in events] == ["response.created", "response.done"] * (len(events) // 2)
    ids = [event["response"]["id"] for event in events]
    assert ids[::2] == ids[1::2]
    assert len(set(ids)) == len(ids) // 2
    committed = [event["item_id"] for event in socket.of("input_text_buffer.committed")]
    items = [event["item"]["id"] for event in socket.of("response.output_item.added")]
    assert set(committed) <= set(items)


# --- Wyoming ---------------------------------------------------------------------------------------------------------

WYOMING_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("synthesize"), st.sampled_from(TEXTS)),
        st.tuples(st.just("synthesize-chunk"), st.sampled_from(TEXTS)),
        st.tuples(st.sampled_from(["synthesize-start", "synthesize-stop", "refused-start", "refused"]), st.none()),
        st.tuples(st.just("sleep"), st.sampled_from([0.0, 0.1, 1.0])),
    ),
    max_size=12,
)


class Writer:
    """Collects what the server writes."""

    def __init__(self) -> None:
        self.received = asyncio.StreamReader()

    def write(self, data: bytes) -> None:
        self.received.feed_data(data)

    def writelines(self, lines: Sequence[bytes]) -> None:
        for line in lines:
            self.write(line)

    async def drain(self) -> None:
        return

    def close(self) -> None:
        self.received.feed_eof()


def wyoming_event(kind: str, text: object) -> Event:
    voice = {"voice": {"name": "nobody"}} if kind.startswith("refused") else {}
    kind = {"refused": "synthesize", "refused-start": "synthesize-start"}.get(kind, kind)
    return Event(kind, {"text": "Hello." if text is None else text, **voice})


def pump(steps: Sequence[Step]) -> tuple[int, int]:
    """How many `audio-stop` and `synthesize-stopped` these steps must get; the text stream is closed at the end."""
    stops, stopped = 0, 0
    streaming, refused, text = False, False, ""
    for kind, value in [*steps, ("synthesize-stop", None)]:
        closes = streaming and kind in ("synthesize-start", "refused-start", "synthesize-stop")
        if closes:
            streaming, stopped = False, stopped + 1
            stops += bool(text) or refused
        if kind in ("synthesize-start", "refused-start"):
            streaming, refused, text = True, kind == "refused-start", ""
        elif kind == "synthesize-chunk" and streaming:
            text += value
        elif kind in ("synthesize", "refused") and not streaming:
            stops += 1
    return stops, stopped


@settings(max_examples=60, deadline=None)
@given(steps=WYOMING_STEPS, busy=st.booleans())
def test_every_wyoming_request_gets_its_stop(checkpoint: Path, steps: list[Step], busy: bool) -> None:
    simulation = Simulation(checkpoint, engine=SMALL)

    async def client() -> list[Event]:
        if busy:
            await hold_queue(simulation)
        reader, writer = asyncio.StreamReader(), Writer()
        codec = simulation.state.tts.model.config.codec
        limits = PlaybackLimits(
            sample_rate_hz=codec.sample_rate_hz, frame_samples=codec.frame_samples, buffer_ms=30_000
        )
        async with simulation.session("wyoming", limits) as session:
            connection = WyomingConnection(simulation.state, session, reader, writer)  # type: ignore[arg-type]
            served = asyncio.create_task(connection.run())
            for kind, value in [*steps, ("synthesize-stop", None)]:
                if kind == "sleep":
                    await asyncio.sleep(value)
                else:
                    reader.feed_data(b"".join(wyoming_bytes(wyoming_event(kind, value))))
            await asyncio.sleep(1000.0)
            reader.feed_eof()
            await served
        events: list[Event] = []
        while (event := await async_read_event(writer.received)) is not None:
            events.append(event)
        return events

    events = simulation.run(client(), limit_s=PATIENCE_S)
    kinds = [event.type for event in events if event.type in ("audio-start", "audio-stop", "synthesize-stopped")]
    stops, stopped = pump(steps)
    assert Counter(kinds) == Counter(
        {
            kind: count
            for kind, count in {"audio-start": stops, "audio-stop": stops, "synthesize-stopped": stopped}.items()
            if count
        }
    )
    audio = [kind for kind in kinds if kind != "synthesize-stopped"]
    assert audio == ["audio-start", "audio-stop"] * stops


def wyoming_bytes(event: Event) -> list[bytes]:
    """An event as the protocol writes it: a header line."""
    import json

    return [json.dumps({"type": event.type, "data": event.data}).encode(), b"\n"]
