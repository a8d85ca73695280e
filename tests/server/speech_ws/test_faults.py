"""Invalid, hostile and missing messages on `/v1/audio/speech/stream` are answered with errors or close the socket."""

from __future__ import annotations

import json

import numpy as np
import pytest
import websockets
from hypothesis import given, settings
from hypothesis import strategies as st

from legato.client.pcm import PcmJoiner
from legato.client.socket import Event, SpeechClient, SpeechError
from legato.errors import InputError
from tests.server.running import Running, slots_free, wait_for
from tests.server.sockets import FRAME, OPTIONS, run_client, ws

# --- invalid and hostile ---------------------------------------------------------------------------------------------

INVALID = (
    ("", "one JSON object"),
    ("[1]", "not list"),
    ("{}", "type must be one of"),
    ('{"type":"input.txt"}', "type must be one of"),
    ('{"type":"input.text","text":5}', "text must be a string"),
    ('{"type":"input.commit"}', "no utterance is open"),
    ('{"type":"session.config","voice":"nobody"}', "unknown voice"),
    ('{"type":"session.config","response_format":"midi"}', "midi"),
    ('{"type":"session.config","sample_rate":"24000"}', "sample_rate"),
    ('{"type":"session.config","sample_rate":12345}', "12345"),
    ('{"type":"session.config","word_timestamps":true}', "no word timestamps"),
    ('{"type":"session.config","speaker_embedding":[0.5]}', "speaker_embedding is not supported"),
    ('{"type":"session.config","buffer_ms":400,"start_ms":300}', "buffer_ms must hold"),
    ('{"type":"session.config","model":"gpt-9"}', "unknown model"),
    ('{"type":"playback.ack","utterance_index":NaN}', "one JSON object"),
    ('{"type":"playback.ack","utterance_index":9}', "no utterance 9"),
    ('{"type":"input.text","text":"' + "x" * 140_000 + '"}', "the limit is 131072"),
    ('{"type":"input.text","text":"' + "x" * 6000 + '"}', "the limit is 5000"),
    ("[" * 100_000, "one JSON object"),
    (b"\x00\x01", "only text frames"),
)


def test_invalid_messages_are_answered_and_change_nothing(speaker: Running) -> None:
    async def client() -> None:
        async with SpeechClient(ws(speaker), OPTIONS) as speech:
            for message, part in INVALID:
                await speech.send_frame(message)
                with pytest.raises(SpeechError, match=part) as caught:
                    await speech.receive(0)
                assert caught.value.server_code
            heard = await speech.say("Still here.", 0)
            assert len(heard.samples) == 6 * FRAME

    run_client(client())


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 2**70) | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
TYPES = ["session.config", "input.text", "input.commit", "input.done", "input.cancel", "playback.ack"]
NAMES = [
    "text",
    "replace",
    "utterance_index",
    "played_through_sample",
    "voice",
    "seed",
    "top_p",
    "sample_rate",
    "speed",
]
MESSAGES = st.builds(
    lambda kind, fields: {**fields, "type": kind}, st.sampled_from(TYPES), st.dictionaries(st.sampled_from(NAMES), JSON)
)


@settings(max_examples=12, deadline=None)
@given(st.lists(MESSAGES, max_size=12))
def test_fuzzed_messages_do_not_break_the_connection(speaker: Running, messages: list[dict[str, object]]) -> None:
    """After any messages, `session.close` closes the socket normally in time."""

    async def client() -> None:
        async with websockets.connect(ws(speaker) + "/v1/audio/speech/stream") as socket:
            await socket.send(json.dumps({"type": "session.config", "max_new_tokens": 1}))
            for message in messages:
                limited = {**message, "max_new_tokens": 1} if message["type"] == "session.config" else message
                await socket.send(json.dumps(limited))
            await socket.send(json.dumps({"type": "input.cancel"}))
            await socket.send(json.dumps({"type": "session.close"}))
            async for frame in socket:
                if isinstance(frame, str):
                    assert json.loads(frame)["type"]
            assert socket.close_code == 1000

    run_client(client())


def test_idle_socket_is_closed_with_error(reader: Running) -> None:
    async def client() -> None:
        async with SpeechClient(ws(reader)) as speech:
            await speech.write("Half a")  # an open utterance holds a slot
            with pytest.raises(SpeechError) as caught:
                await speech.receive(0)
            assert caught.value.server_code == "idle_timeout"
            with pytest.raises(SpeechError, match="closed"):
                await speech.receive(0)

    run_client(client())
    wait_for(lambda: slots_free(reader.tts), seconds=10)


# --- the client ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 3, 4063])
def test_pcm_pieces_of_odd_size_are_joined(size: int) -> None:
    """R46."""
    samples = np.arange(-3000, 3000, dtype="<i2")
    data = samples.tobytes()
    joiner = PcmJoiner()
    parts = [joiner.decode(data[start : start + size]) for start in range(0, len(data), size)]
    joiner.end()
    np.testing.assert_array_equal(np.concatenate(parts), samples)
    joiner.decode(b"\x01\x02\x03")
    with pytest.raises(InputError, match="middle of a sample"):
        joiner.end()
    np.testing.assert_array_equal(joiner.decode(data), samples)
    joiner.decode(b"\x01")
    joiner.reset()
    np.testing.assert_array_equal(joiner.decode(data), samples)


def test_event_number_reads_integer_field() -> None:
    assert Event("audio.start", {"utterance_index": 4}).number("utterance_index") == 4
