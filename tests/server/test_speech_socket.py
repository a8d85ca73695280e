"""`/v1/audio/speech/stream` through the reference client: what is heard is what the engine makes, and only that.

Tiny checkpoints with random weights: every utterance has a limit of frames, except where the text track ends it.
"""

from __future__ import annotations

import numpy as np
import pytest

from legato.client.socket import Sound, SpeechClient, SpeechError
from tests.server.running import Running, slots_free, wait_for
from tests.server.sockets import FRAME, OPTIONS, go, ws

# --- sound -----------------------------------------------------------------------------------------------------------


def test_text_in_pieces_is_one_generation_and_utterances_follow_each_other(speaker: Running) -> None:
    """Binary and base64 carry the samples of the engine; the declared rate is the codec's (R48)."""

    async def work(transport: str) -> list[np.ndarray]:
        async with SpeechClient(ws(speaker), {"audio_transport": transport, **OPTIONS}) as speech:
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
        async with SpeechClient(ws(speaker), long) as speech:
            await speech.write("A long speech that somebody will break off. " * 5)
            await speech.done()
            await speech.write("It would be followed by this.")
            await speech.done()
            async for event in speech.events():
                if isinstance(event, Sound):
                    break
            await speech.cancel(utterance=0, played_through=960)
            await speech.configure(OPTIONS)
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
        async with SpeechClient(ws(speaker), OPTIONS) as speech:
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
        async with SpeechClient(ws(speaker), {**OPTIONS, "max_new_tokens": 200}) as speech:
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
