"""`/api-ws/v1/realtime`: the official SDK works with only a changed URL, and events have the expected content."""

from __future__ import annotations

import asyncio
import base64
import json
import queue
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager

import dashscope
import numpy as np
import pytest
from dashscope.audio.qwen_tts_realtime import QwenTtsRealtime, QwenTtsRealtimeCallback
from hypothesis import given, settings
from hypothesis import strategies as st
from websockets.asyncio.client import ClientConnection, connect

from tests.server.running import Running, slots_free, wait_for
from tests.server.sockets import FRAME, run_client, ws

Message = dict[str, object]
ROUTE = "/api-ws/v1/realtime"
RESPONSE_EVENTS = [
    "response.created",
    "response.output_item.added",
    "response.content_part.added",
    "response.audio.delta",
    "response.audio.done",
    "response.content_part.done",
    "response.output_item.done",
    "response.done",
]
"""The events of a complete response, in order."""


class Collector(QwenTtsRealtimeCallback):
    """SDK callback that collects events."""

    def __init__(self) -> None:
        self.events: queue.Queue[Message] = queue.Queue()
        self.closed: queue.Queue[int] = queue.Queue()

    def on_event(self, message: Message) -> None:  # type: ignore[override]  # the SDK annotates str but passes a dict
        self.events.put(message)

    def on_close(self, close_status_code: int, close_msg: str) -> None:  # noqa: ARG002  the SDK's signature
        self.closed.put(close_status_code)

    def until(self, kind: str) -> list[Message]:
        seen: list[Message] = []
        while not seen or seen[-1]["type"] != kind:
            seen.append(self.events.get(timeout=60))
        return seen


@contextmanager
def sdk(server: Running, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[QwenTtsRealtime, Collector]]:
    """An SDK client, configured only by URL. Closes its socket, which the SDK leaves to the garbage collector."""
    monkeypatch.setattr(dashscope, "api_key", "any")
    collector = Collector()
    client = QwenTtsRealtime("qwen3-tts-flash-realtime", callback=collector, url=ws(server) + ROUTE)
    client.connect()
    assert client.ws is not None
    sock = client.ws.sock.sock
    try:
        yield client, collector
    finally:
        client.close()
        client.thread.join(10)
        sock.close()


def audio(events: list[Message]) -> bytes:
    return b"".join(base64.b64decode(str(e["delta"])) for e in events if e["type"] == "response.audio.delta")


def kinds(events: list[Message]) -> list[object]:
    """Event types in order; consecutive audio deltas count once."""
    found: list[object] = []
    for event in events:
        if not (event["type"] == "response.audio.delta" and found[-1:] == ["response.audio.delta"]):
            found.append(event["type"])
    return found


def test_sdk_in_server_commit_mode(speaker: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    with sdk(speaker, monkeypatch) as (client, collector):
        client.update_session(voice="Cherry", mode="server_commit", language_type="Auto", max_new_tokens=6, seed=3)
        for piece in ("Some wo", "rds to ", "speak."):
            client.append_text(piece)
        client.finish()
        events = collector.until("session.finished")
        assert kinds(events) == ["session.created", "session.updated", *RESPONSE_EVENTS, "session.finished"]
        assert str(client.session_id).startswith("sess_")
        assert str(client.last_response_id).startswith("resp_")
        assert client.last_first_audio_delay is not None
        assert collector.closed.get(timeout=30) == 1000
        first = next(iter(speaker.tts.model.config.talker.speakers))
        expected = speaker.tts.say(iter(["Some words to speak."]), voice=first, seed=3, max_frames=6).samples
        received = np.frombuffer(audio(events), dtype="<i2")
        assert np.abs(received - np.clip(np.rint(expected * 32768), -32768, 32767)).max() <= 1
        done = events[-2]["response"]
        assert isinstance(done, dict)
        assert (done["status"], done["finish_reason"]) == ("incomplete", "max_frames")
        assert done["usage"]["output_tokens_details"] == {"text_tokens": 0, "audio_tokens": 50}
        assert done["usage"]["characters"] == len("Some words to speak.")


def test_sdk_commit_clear_and_cancel(speaker: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    with sdk(speaker, monkeypatch) as (client, collector):
        client.update_session(
            voice="Ryan", mode="commit", volume=0, sample_rate=8000, audio_format="wav", max_new_tokens=4
        )
        client.append_text("Never spoken.")
        client.clear_appended_text()
        client.append_text("Spoken in silence.")
        client.commit()
        events = collector.until("response.done")
        assert kinds(events)[2:] == ["input_text_buffer.cleared", "input_text_buffer.committed", *RESPONSE_EVENTS]
        done = events[-1]["response"]
        assert isinstance(done, dict)
        assert done["usage"]["characters"] == len("Spoken in silence.")  # and nothing that was cleared
        data = audio(events)
        assert data[:4] == b"RIFF"
        assert int.from_bytes(data[24:28], "little") == 8000
        assert data[44:] == bytes(2 * 4 * FRAME // 3)
        client.update_session(voice="Ryan", mode="server_commit", max_new_tokens=200)
        client.append_text("Something long that will be cancelled. " * 4)
        collector.until("response.audio.delta")
        client.cancel_response()
        done = collector.until("response.done")[-1]["response"]
        assert isinstance(done, dict)
        assert done["status"] == "cancelled"
        assert done["status_details"]["heard_by"] == "estimate"
        client.append_text("On again.")
        client.commit()
        client.cancel_response()
    wait_for(lambda: slots_free(speaker.tts))


@asynccontextmanager
async def socket(server: Running, update: Mapping[str, object] | None = None) -> AsyncIterator[ClientConnection]:
    async with connect(ws(server) + ROUTE + "?model=qwen3-tts-flash-realtime") as opened:
        assert json.loads(await opened.recv())["type"] == "session.created"
        if update is not None:
            await send(opened, "session.update", session=update)
            assert json.loads(await opened.recv())["type"] == "session.updated"
        yield opened


async def send(opened: ClientConnection, kind: str, **fields: object) -> None:
    await opened.send(json.dumps({"type": kind, "event_id": "event_1", **fields}))


async def until(opened: ClientConnection, kind: str) -> list[Message]:
    seen: list[Message] = []
    while not seen or seen[-1]["type"] != kind:
        seen.append(json.loads(await opened.recv()))
    return seen


def test_responses_are_sequential_and_words_are_reported(reader: Running) -> None:
    async def client() -> None:
        async with socket(reader, {"mode": "commit", "word_timestamps": True, "speech_rate": 2.0}) as opened:
            for text in ("One two three.", "Four."):
                await send(opened, "input_text_buffer.append", text=text)
                await send(opened, "input_text_buffer.commit")
            await send(opened, "session.finish")
            events = await until(opened, "session.finished")
            responses = [e["response"]["id"] for e in events if e["type"] == "response.created"]  # type: ignore[index]
            order = [e["response_id"] for e in events if e["type"] == "response.audio.delta"]
            assert sorted(order, key=responses.index) == order
            assert set(order) == set(responses)
            words = [e for e in events if e["type"] == "response.audio.timestamps"]
            texts = [word["text"] for e in words if isinstance(e["words"], list) for word in e["words"]]
            assert [word.strip(".") for word in texts] == ["One", "two", "three", "Four"]

    run_client(client())


REJECTED: tuple[tuple[Mapping[str, object], str], ...] = (
    ({"word_timestamps": True}, "word_timestamps"),
    ({"speaker_embedding": [0.5]}, "session.speaker_embedding"),
    ({"speech_rate": 3}, "session.speech_rate"),
    ({"speech_rate": 1.5}, "speed"),
    ({"volume": 101}, "session.volume"),
    ({"mode": "auto"}, "session.mode"),
    ({"voice": "nobody"}, "voice"),
    ({"language_type": "Klingon"}, "language"),
    ({"response_format": "aac"}, "session.response_format"),
    ({"sample_rate": 11025}, "session.sample_rate"),
    ({"response_format": "opus", "sample_rate": 44100}, "sample_rate"),
)


def test_unsupported_settings_are_rejected_by_name_and_change_nothing(speaker: Running) -> None:
    async def client() -> None:
        async with socket(speaker, {"voice": "Serena", "max_new_tokens": 2}) as opened:
            for fields, name in REJECTED:
                await send(opened, "session.update", session=fields)
                error = (await until(opened, "error"))[-1]["error"]
                assert isinstance(error, dict)
                assert error["param"] == name
                assert error["event_id"] == "event_1"
            for kind in ("input_text_buffer.commit", "response.cancel", "conversation.item.create"):
                await send(opened, kind)
                await until(opened, "error")
            await send(opened, "session.update", session={"pitch_rate": 1.0, "enable_tn": False})
            session = (await until(opened, "session.updated"))[-1]["session"]
            assert isinstance(session, dict)
            assert session["voice"] == "Serena"
            await send(opened, "input_text_buffer.append", text="Hello.")
            await send(opened, "session.update", session={})
            await until(opened, "error")
            await send(opened, "input_text_buffer.commit")
            await until(opened, "response.done")

    run_client(client())


def test_settings_without_effect_are_named_and_the_others_applied(speaker: Running) -> None:
    """The SDK sends them beside the voice: an error would leave the session in another voice."""
    without_effect = {"pitch_rate": 1.2, "bit_rate": 64, "optimize_instructions": True, "enable_tn": True, "new": 1}

    async def client() -> None:
        async with socket(speaker) as opened:
            await send(opened, "session.update", session={"voice": "Serena", "sample_rate": 8000, **without_effect})
            (updated,) = await until(opened, "session.updated")
            assert isinstance(updated["session"], dict)
            assert (updated["session"]["voice"], updated["session"]["sample_rate"]) == ("Serena", 8000)
            assert updated["ignored"] == [f"session.{name}" for name in without_effect]
            harmless = {"pitch_rate": 1.0, "bit_rate": None, "optimize_instructions": False, "enable_tn": False}
            await send(opened, "session.update", session=harmless)
            assert (await until(opened, "session.updated"))[-1]["ignored"] == []

    run_client(client())


EVENTS = st.builds(
    lambda kind, fields: {**fields, "type": kind},
    st.sampled_from(["session.update", "response.cancel", "input_text_buffer.append", "input_text_buffer.commit", "x"]),
    st.dictionaries(
        st.sampled_from(["text", "session", "event_id", "response_id", "played_through_sample"]),
        st.none()
        | st.integers()
        | st.text(max_size=4)
        | st.dictionaries(st.sampled_from(["voice", "mode"]), st.text()),
        max_size=3,
    ),
)


@settings(max_examples=10, deadline=None)
@given(st.lists(EVENTS, max_size=10))
def test_fuzzed_events_do_not_break_the_connection(speaker: Running, events: list[Message]) -> None:
    async def client() -> None:
        async with socket(speaker, {"max_new_tokens": 1}) as opened:
            for event in events:
                await opened.send(json.dumps(event))
            await send(opened, "session.finish")
            await asyncio.wait_for(until(opened, "session.finished"), 60)

    run_client(client())
