"""`/v1/audio/speech/stream` through the reference client: the client receives exactly the audio of the engine.

The tiny checkpoints have random weights, so utterances end at a frame limit, or with the text track if there is one.
"""

from __future__ import annotations

import numpy as np
import pytest

from legato.client.socket import AudioData, SpeechClient, SpeechError
from tests.server.running import Running, slots_free, wait_for
from tests.server.sockets import FRAME, OPTIONS, run_client, ws

# --- audio -----------------------------------------------------------------------------------------------------------


def test_streamed_text_is_one_generation_and_utterances_follow_in_order(speaker: Running) -> None:
    """Binary and base64 audio equal the engine's samples, and the declared rate is the codec's (R48)."""

    async def client(transport: str) -> list[np.ndarray]:
        async with SpeechClient(ws(speaker), {"audio_transport": transport, **OPTIONS}) as speech:
            for piece in ("Some wo", "rds to sp", "eak."):
                await speech.write(piece)
            await speech.done()
            await speech.write("And more.")
            await speech.done()
            heard = [await speech.receive(0), await speech.receive(1)]
        kinds = [event.type for each in heard for event in each.events]
        assert kinds == ["audio.start", "audio.done", "session.done"] * 2
        start, done = heard[0].events[0].message, heard[0].events[1].message
        assert (start["sample_rate"], start["format"]) == (speaker.tts.sample_rate_hz, "pcm")
        assert (done["samples"], done["total_bytes"], done["finish_reason"]) == (6 * FRAME, 12 * FRAME, "max_frames")
        assert done["timing"]
        return [each.samples for each in heard]

    expected = [
        speaker.tts.say(iter([text]), voice="ryan", seed=3, max_frames=6).samples
        for text in ("Some words to speak.", "And more.")
    ]
    for transport in ("binary", "base64"):
        for received, samples in zip(run_client(client(transport)), expected, strict=True):
            assert np.abs(received - np.clip(np.rint(samples * 32768), -32768, 32767)).max() <= 1


def test_formats_sample_rates_and_sentence_splitting(speaker: Running) -> None:
    async def client() -> None:
        options = {**OPTIONS, "max_new_tokens": 3}
        async with SpeechClient(ws(speaker), {"response_format": "wav", "sample_rate": 16000, **options}) as speech:
            heard = await speech.say("One. Two.", 0)
            assert heard.data[:4] == b"RIFF"
            assert int.from_bytes(heard.data[24:28], "little") == 16000
            assert len(heard.data) == 44 + 2 * 3 * FRAME * 16000 // 24000 == heard.events[1].number("total_bytes")
            split = {"response_format": "opus", "split_granularity": "sentence", "unknown": 1}
            await speech.configure({**split, **options})
            await speech.write("One two. Th")
            await speech.write("ree four! Five.")
            await speech.done()
            heard = await speech.receive(1)
            assert speech.configured["ignored"] == ["unknown"]
            starts = [event.message for event in heard.events if event.type == "audio.start"]
            assert [start["sentence_index"] for start in starts] == [0, 1, 2]
            assert heard.events[-1].number("total_sentences") == 3
            assert heard.data.count(b"OpusHead") == 3

    run_client(client())


# --- barge-in --------------------------------------------------------------------------------------------------------


def test_no_audio_of_old_utterance_after_cancel(speaker: Running) -> None:
    async def client() -> None:
        long = {**OPTIONS, "max_new_tokens": 150}
        async with SpeechClient(ws(speaker), long) as speech:
            await speech.write("A long speech that will be interrupted. " * 5)
            await speech.done()
            await speech.write("It would be followed by this.")
            await speech.done()
            async for event in speech.events():
                if isinstance(event, AudioData):
                    break
            await speech.cancel(utterance=0, played_through=960)
            await speech.configure(OPTIONS)
            await speech.write("New.")
            await speech.done()
            seen: list[str] = []
            async for event in speech.events():
                if isinstance(event, AudioData):
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

    run_client(client())
    wait_for(lambda: slots_free(speaker.tts))


def test_replace_cancels_and_impossible_acknowledgements_are_rejected(speaker: Running) -> None:
    async def client() -> None:
        async with SpeechClient(ws(speaker), OPTIONS) as speech:
            await speech.write("First.")
            await speech.write("Second.", replace=True)
            await speech.done()
            assert [event.type for event in (await speech.receive(1)).events] == ["input.cancelled"]
            assert len((await speech.receive(1)).samples) == 6 * FRAME
            await speech.acknowledge(1, 6 * FRAME)
            await speech.acknowledge(5, 1)
            with pytest.raises(SpeechError, match="no utterance 5 yet"):
                await speech.receive(1)

    run_client(client())


def test_disconnect_releases_slots(speaker: Running) -> None:
    async def client() -> None:
        async with SpeechClient(ws(speaker), {**OPTIONS, "max_new_tokens": 200}) as speech:
            await speech.write("Never received completely. " * 8)
            async for event in speech.events():
                if isinstance(event, AudioData):
                    return

    run_client(client())
    wait_for(lambda: slots_free(speaker.tts), seconds=10)


# --- words -----------------------------------------------------------------------------------------------------------


def test_word_times_and_heard_text_are_exact_with_embedded_front_end(reader: Running) -> None:
    text = "Hello there. This is a test of word times, said in two breaths or more."

    async def client() -> None:
        async with SpeechClient(ws(reader), {"word_timestamps": True}) as speech:
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
                count += len(event.samples) if isinstance(event, AudioData) and event.utterance == 1 else 0
                if count >= 24000:
                    break
            await speech.cancel(utterance=1, played_through=24000)
            reports = (await speech.receive(1)).events[-1].message["utterances"]
            assert isinstance(reports, list)
            through = [word["text_end"] for word in words if word["end_s"] <= 1.0]
            (report,) = [each for each in reports if each["utterance_index"] == 1]
            assert (report["heard_by"], report["heard_error_chars"]) == ("words", 0)
            assert report["heard_text"] == text[: through[-1]]

    run_client(client())


# --- LiveKit's plugin ------------------------------------------------------------------------------------------------


def test_livekit_configuration_keep_alive_and_word_alignment(reader: Running) -> None:
    """The messages of livekit-plugins-baseten: task_type "Base" by default, an empty input.done, timestamp_info."""
    text = "One two three."
    config = {
        "task_type": "Base",
        "stream_audio": True,
        "speed": 1.0,
        "language": "Auto",
        "timestamp_type": "word",
        "timestamp_transport_strategy": "sync",
    }

    async def client() -> None:
        async with SpeechClient(ws(reader), config) as speech:
            assert speech.configured["ignored"] == []
            await speech.done()
            keep_alive = (await speech.receive(0)).events
            assert [(event.type, event.message["total_sentences"]) for event in keep_alive] == [("session.done", 0)]
            heard = await speech.say(text, 1)
            assert [event.type for event in heard.events] == ["audio.start", "audio.done", "session.done"]
            info = heard.events[1].message["timestamp_info"]
            assert isinstance(info, dict)
            alignment = info["word_alignment"]
            assert alignment["words"] == ["One", "two", "three"]
            starts, ends = alignment["word_start_times_seconds"], alignment["word_end_times_seconds"]
            assert all(start < end for start, end in zip(starts, ends, strict=True))
            assert ends[-1] <= len(heard.samples) / 24000
            await speech.configure({**config, "timestamp_transport_strategy": "async"})
            kinds = [event.type for event in (await speech.say(text, 2)).events]
            assert kinds[0] == "session.configured"
            assert "audio.timestamps" in kinds

    run_client(client())


def test_word_alignment_is_null_without_word_times(speaker: Running) -> None:
    async def client() -> None:
        async with SpeechClient(ws(speaker), {**OPTIONS, "timestamp_type": "word", "task_type": "Base"}) as speech:
            done = (await speech.say("Some words.", 0)).events[1]
            assert done.type == "audio.done"
            assert done.message["timestamp_info"] is None

    run_client(client())
