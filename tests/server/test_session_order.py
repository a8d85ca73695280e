"""Utterances of one session reach the engine in order, however long each takes to open, and all of them end."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from legato.api import Legato, load
from legato.client.socket import SpeechClient
from legato.config.server import ServerConfig
from tests.conftest import TinyCheckpoint
from tests.server.running import Running, running, slots_free, wait_for
from tests.server.sockets import FRAME, OPTIONS, run_client, ws

SENTENCES = "One. Two. Three. Four. Five. Six."
DELAYS_S = st.lists(st.sampled_from([0.0, 0.0, 0.02, 0.1]), min_size=6, max_size=6)


@pytest.fixture(scope="module", params=[1, 2])
def few_slots(request: pytest.FixtureRequest, tiny_checkpoint: TinyCheckpoint) -> Iterator[Running]:
    """One or two slots, and a queue that holds all sentences."""
    folder: Path = tiny_checkpoint("tiny-custom-voice")
    with (
        load(folder, max_num_seqs=request.param, max_queue=12, max_seq_len=256) as tts,
        running(tts, ServerConfig(model_id="tiny", warm_up=False)) as server,
    ):
        yield server


@contextmanager
def slow_opening(delays_s: list[float]) -> Iterator[list[str]]:
    """Delay the opening of the first streams, as the encoding of a reference does. Yields a list of opened streams."""
    remaining_s, original = list(delays_s), Legato.open
    opened: list[str] = []

    def slow(self: Legato, request: object, **options: object) -> object:
        time.sleep(remaining_s.pop(0) if remaining_s else 0.0)
        opened.append("opened")
        return original(self, request, **options)  # type: ignore[arg-type]

    with mock.patch.object(Legato, "open", slow):
        yield opened


@settings(max_examples=8, deadline=None)
@given(delays_s=DELAYS_S, frames=st.integers(1, 9), sentences=st.booleans())
def test_all_sentences_of_a_session_end_in_order(
    few_slots: Running, delays_s: list[float], frames: int, sentences: bool
) -> None:
    async def client() -> list[tuple[str, object]]:
        options = {**OPTIONS, "max_new_tokens": frames}
        if sentences:
            options["split_granularity"] = "sentence"
        async with SpeechClient(ws(few_slots), options) as speech:
            if sentences:
                await speech.write(SENTENCES)
                await speech.done()
                heard = await speech.receive(0)
                return [(event.type, event.message.get("sentence_index")) for event in heard.events]
            for utterance in range(6):
                await speech.write(f"Utterance number {utterance}.")
                await speech.done()
            events = [(await speech.receive(utterance)).events for utterance in range(6)]
            return [(event.type, event.message.get("utterance_index")) for each in events for event in each]

    with slow_opening(delays_s) as opened:
        seen = run_client(client())
    assert len(opened) == 6
    assert [index for kind, index in seen if kind == "audio.done"] == list(range(6))
    wait_for(lambda: slots_free(few_slots.tts))


def test_other_client_is_served_while_first_stream_of_session_opens(few_slots: Running) -> None:
    """Neither the delayed stream nor those queued behind it hold a slot."""

    async def client() -> int:
        options = {**OPTIONS, "max_new_tokens": 3, "split_granularity": "sentence"}
        async with SpeechClient(ws(few_slots), options) as speech:
            await speech.write(SENTENCES)
            await speech.done()
            other = few_slots.tts.say("Another client.", voice="ryan", max_frames=3)
            await speech.receive(0)
            return len(other.samples)

    with slow_opening([0.4]):
        assert run_client(client()) == 3 * FRAME
