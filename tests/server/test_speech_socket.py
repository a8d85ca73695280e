"""`/v1/audio/speech/stream` through the reference client: what is heard is what the engine makes, and only that.

Tiny checkpoints with random weights: every utterance has a limit of frames, except where the text track ends it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine, Iterator
from typing import TypeVar

import numpy as np
import pytest
import websockets
from hypothesis import given, settings
from hypothesis import strategies as st

from legato.api import load
from legato.client.pcm import PcmJoiner
from legato.client.socket import Event, Sound, SpeechClient, SpeechError
from legato.config.server import ServerConfig
from legato.errors import InputError
from tests.conftest import TinyCheckpoint
from tests.server.running import Running, running, slots_free, wait_for

T = TypeVar("T")
FRAME = 1920
OPTIONS: dict[str, object] = {"voice": "ryan", "seed": 3, "max_new_tokens": 6}


def go(work: Coroutine[None, None, T]) -> T:
    """Run one client; what hangs fails."""
    return asyncio.run(asyncio.wait_for(work, 60))


def ws(server: Running) -> str:
    return server.url.replace("http", "ws")


@pytest.fixture(scope="module")
def reader(tiny_checkpoint: TinyCheckpoint) -> Iterator[Running]:
    """A server whose front end knows word times, with sockets that may be idle for half a second."""
    config = ServerConfig(model_id="tiny-embedded", idle_s=0.5, warm_up=False)
    with load(tiny_checkpoint("tiny-embedded"), slots=2, positions=512) as tts, running(tts, config) as server:
        yield server


# --- sound -----------------------------------------------------------------------------------------------------------


def test_text_in_pieces_is_one_generation_and_utterances_follow_each_other(speaker: Running) -> None:
    """Binary and base64 carry the samples of the engine; the declared rate is the codec's (R48)."""

    async def work(transport: str) -> list[np.ndarray]:
        async with SpeechClient(ws(speaker), audio_transport=transport, **OPTIONS) as speech:
            for piece in ("Some wo", "rds to sp", "eak."):
                await speech.write(piece)
            await speech.done()
            await speech.write("And more.")
            await speech.done()
            heard = [await speech.hear(0), await speech.hear(1)]
        kinds = [event.type for each in heard for event in each.events]
        assert kinds == ["audio.start", "audio.done", "session.done"] * 2
        start, done = heard[0].events[0].message, heard[0].events[1].message
        assert (start["sample_rate"], start["format"]) == (speaker.tts.sample_rate_hz, "pcm")
        assert (done["samples"], done["total_bytes"], done["finish_reason"]) == (6 * FRAME, 12 * FRAME, "max_frames")
        assert done["timing"]
        return [each.samples for each in heard]

    said = [
        speaker.tts.say(iter([text]), voice="ryan", seed=3, max_frames=6).samples
        for text in ("Some words to speak.", "And more.")
    ]
    for transport in ("binary", "base64"):
        for mine, truth in zip(go(work(transport)), said, strict=True):
            assert np.abs(mine - np.clip(np.rint(truth * 32768), -32768, 32767)).max() <= 1


def test_formats_rates_and_sentences(speaker: Running) -> None:
    async def work() -> None:
        options = {**OPTIONS, "max_new_tokens": 3}
        async with SpeechClient(ws(speaker), response_format="wav", sample_rate=16000, **options) as speech:
            heard = await speech.say("One. Two.", 0)
            assert heard.data[:4] == b"RIFF"
            assert int.from_bytes(heard.data[24:28], "little") == 16000
            assert len(heard.data) == 44 + 2 * 3 * FRAME * 16000 // 24000 == heard.events[1].number("total_bytes")
            await speech.configure(response_format="opus", split_granularity="sentence", unknown=1, **options)
            await speech.write("One two. Th")
            await speech.write("ree four! Five.")
            await speech.done()
            heard = await speech.hear(1)
            assert speech.configured["ignored"] == ["unknown"]
            starts = [event.message for event in heard.events if event.type == "audio.start"]
            assert [start["sentence_index"] for start in starts] == [0, 1, 2]
            assert heard.events[-1].number("total_sentences") == 3
            assert heard.data.count(b"OpusHead") == 3

    go(work())


# --- barge-in --------------------------------------------------------------------------------------------------------


def test_nothing_of_the_old_utterance_is_heard_after_a_cancel(speaker: Running) -> None:
    async def work() -> None:
        long = {**OPTIONS, "max_new_tokens": 150}
        async with SpeechClient(ws(speaker), **long) as speech:
            await speech.write("A long speech that somebody will break off. " * 5)
            await speech.done()
            await speech.write("It would be followed by this.")
            await speech.done()
            async for event in speech.events():
                if isinstance(event, Sound):
                    break
            await speech.cancel(utterance=0, played_through=960)
            await speech.configure(**OPTIONS)
            await speech.write("New.")
            await speech.done()
            seen: list[str] = []
            async for event in speech.events():
                if isinstance(event, Sound):
                    assert event.utterance == 2
                    assert "audio.start" in seen
                    continue
                seen.append(event.type)
                if event.type == "input.cancelled":
                    assert isinstance(event.message["utterances"], list)
                    first, second = event.message["utterances"]
                    assert (first["utterance_index"], second["utterance_index"]) == (0, 1)
                    assert (first["played_samples"], first["played_by"]) == (960, "acknowledged")
                    assert first["sent_samples"] >= FRAME
                    assert first["heard_by"] == "estimate"
                    assert (second["played_samples"], second["heard_text"]) == (0, "")
                if event.type == "session.done":
                    break
            assert seen == ["input.cancelled", "session.configured", "audio.start", "audio.done", "session.done"]

    go(work())
    wait_for(lambda: slots_free(speaker.tts))


def test_speaking_over_replaces_and_acknowledgements_of_the_impossible_are_refused(speaker: Running) -> None:
    async def work() -> None:
        async with SpeechClient(ws(speaker), **OPTIONS) as speech:
            await speech.write("First.")
            await speech.write("Second.", replace=True)
            await speech.done()
            assert [event.type for event in (await speech.hear(1)).events] == ["input.cancelled"]
            assert len((await speech.hear(1)).samples) == 6 * FRAME
            await speech.acknowledge(1, 6 * FRAME)
            await speech.acknowledge(5, 1)
            with pytest.raises(SpeechError, match="no utterance 5 yet"):
                await speech.hear(1)

    go(work())


def test_a_client_that_leaves_frees_its_slots(speaker: Running) -> None:
    async def work() -> None:
        async with SpeechClient(ws(speaker), **{**OPTIONS, "max_new_tokens": 200}) as speech:
            await speech.write("Never heard to its end. " * 8)
            async for event in speech.events():
                if isinstance(event, Sound):
                    return

    go(work())
    wait_for(lambda: slots_free(speaker.tts), seconds=10)


# --- words -----------------------------------------------------------------------------------------------------------


def test_word_times_and_the_text_that_was_heard_are_exact_where_the_front_end_knows_them(reader: Running) -> None:
    text = "Hello there. This is a test of word times, said in two breaths or more."

    async def work() -> None:
        async with SpeechClient(ws(reader), word_timestamps=True) as speech:
            assert speech.configured["word_times"] == "exact"
            heard = await speech.say(text, 0)
            words = [
                word
                for event in heard.events
                if event.type == "audio.timestamps" and isinstance(event.message["words"], list)
                for word in event.message["words"]
            ]
            assert [word["text"].strip(".,") for word in words] == text.replace(".", "").replace(",", "").split()
            assert all(text[word["text_start"] : word["text_end"]] == word["text"] for word in words)
            ends = [0.0, *(word["end_s"] for word in words)]
            assert all(end <= word["start_s"] < word["end_s"] for end, word in zip(ends, words, strict=False))
            assert ends[-1] <= len(heard.samples) / 24000
            await speech.write(text)
            await speech.done()
            count = 0
            async for event in speech.events():
                count += len(event.samples) if isinstance(event, Sound) and event.utterance == 1 else 0
                if count >= 24000:
                    break
            await speech.cancel(utterance=1, played_through=24000)
            report = (await speech.hear(1)).events[-1].message["utterances"]
            assert isinstance(report, list)
            through = [word["text_end"] for word in words if word["end_s"] <= 1.0]
            (told,) = [each for each in report if each["utterance_index"] == 1]
            assert (told["heard_by"], told["heard_error_chars"]) == ("words", 0)
            assert told["heard_text"] == text[: through[-1]]

    go(work())


# --- wrong and hostile -----------------------------------------------------------------------------------------------

WRONG = (
    ("", "one JSON object"),
    ("[1]", "not list"),
    ("{}", "type must be one of"),
    ('{"type":"input.txt"}', "type must be one of"),
    ('{"type":"input.text","text":5}', "text must be a string"),
    ('{"type":"input.done"}', "no utterance is open"),
    ('{"type":"session.config","voice":"nobody"}', "no voice"),
    ('{"type":"session.config","response_format":"aac"}', "aac"),
    ('{"type":"session.config","sample_rate":"24000"}', "sample_rate"),
    ('{"type":"session.config","sample_rate":12345}', "12345"),
    ('{"type":"session.config","buffer_ms":400,"start_ms":300}', "buffer_ms must hold"),
    ('{"type":"session.config","model":"gpt-9"}', "no model"),
    ('{"type":"playback.ack","utterance_index":NaN}', "one JSON object"),
    ('{"type":"playback.ack","utterance_index":9}', "no utterance 9"),
    ('{"type":"input.text","text":"' + "x" * 140_000 + '"}', "the limit is 131072"),
    ('{"type":"input.text","text":"' + "x" * 6000 + '"}', "the limit is 5000"),
    ("[" * 100_000, "one JSON object"),
    (b"\x00\x01", "only text frames"),
)


def test_wrong_messages_are_answered_and_change_nothing(speaker: Running) -> None:
    async def work() -> None:
        async with SpeechClient(ws(speaker), **OPTIONS) as speech:
            for message, part in WRONG:
                await speech.raw(message)
                with pytest.raises(SpeechError, match=part) as caught:
                    await speech.hear(0)
                assert caught.value.server_code
            heard = await speech.say("Still here.", 0)
            assert len(heard.samples) == 6 * FRAME

    go(work())


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
def test_fuzzed_messages_never_break_the_connection(speaker: Running, messages: list[dict[str, object]]) -> None:
    """Whatever came before, `session.close` ends it properly within its time."""

    async def work() -> None:
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

    go(work())


def test_an_idle_socket_is_told_and_closed(reader: Running) -> None:
    async def work() -> None:
        async with SpeechClient(ws(reader)) as speech:
            await speech.write("Half a")  # an utterance that waits for its text holds a slot
            with pytest.raises(SpeechError) as caught:
                await speech.hear(0)
            assert caught.value.server_code == "idle_timeout"
            with pytest.raises(SpeechError, match="closed"):
                await speech.hear(0)

    go(work())
    wait_for(lambda: slots_free(reader.tts), seconds=10)


# --- the client ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 3, 4063])
def test_odd_pieces_of_pcm_are_joined_and_never_carried_over(size: int) -> None:
    """R46."""
    samples = np.arange(-3000, 3000, dtype="<i2")
    data = samples.tobytes()
    joiner = PcmJoiner()
    parts = [joiner.take(data[start : start + size]) for start in range(0, len(data), size)]
    joiner.end()
    np.testing.assert_array_equal(np.concatenate(parts), samples)
    joiner.take(b"\x01\x02\x03")
    with pytest.raises(InputError, match="middle of a sample"):
        joiner.end()
    np.testing.assert_array_equal(joiner.take(data), samples)
    joiner.take(b"\x01")
    joiner.reset()
    np.testing.assert_array_equal(joiner.take(data), samples)


def test_events_know_their_numbers() -> None:
    assert Event("audio.start", {"utterance_index": 4}).number("utterance_index") == 4
