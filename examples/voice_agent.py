"""A voice agent with barge-in: each line that you type interrupts the answer that is being spoken.

Start `legato serve`, then:  python examples/voice_agent.py [ws://127.0.0.1:8000]
Needs: pip install "legato-tts[server,play]". Replace `lines` with speech
recognition and `answer` with a language model.
"""

import asyncio
import sys
from collections.abc import AsyncIterator

import numpy as np

from legato.audio.play import Player, open_player
from legato.client.socket import AudioData, SpeechClient
from legato.types import Packet, StreamId


async def lines() -> AsyncIterator[str]:
    """Yield the user's utterances."""
    while line := await asyncio.to_thread(sys.stdin.readline):
        yield line.strip()


async def answer(line: str) -> AsyncIterator[str]:
    """Yield the agent's answer in pieces, as a language model generates it."""
    for word in f"You said: {line}. Type another line while I speak, and I stop at once.".split():
        yield word + " "


class Speaker:
    """Plays the audio of one utterance at a time. `stop` drops what was not played yet."""

    def __init__(self, sample_rate_hz: int) -> None:
        self.rate_hz = sample_rate_hz
        self.player: Player | None = None

    def write(self, samples: np.ndarray) -> None:
        if self.player is None:
            self.player = open_player(self.rate_hz)
        floats = (samples / np.float32(32768)).astype("<f4").tobytes()
        self.player.write(Packet(StreamId(0), 0, 0, self.rate_hz, floats))

    def stop(self) -> None:
        if self.player is not None:
            self.player.stop()
        self.player = None

    def close(self) -> None:
        if self.player is not None:
            self.player.close()  # plays to the end


async def listen(speech: SpeechClient, speaker: Speaker, finished: asyncio.Queue[int]) -> None:
    """Play what the server sends. After a cancel the client already drops audio of the old utterance."""
    async for event in speech.events():
        if isinstance(event, AudioData):
            speaker.write(event.samples)
        elif event.type == "session.done":
            finished.put_nowait(event.number("utterance_index"))


async def main(url: str) -> None:
    async with SpeechClient(url) as speech:
        speaker, finished = Speaker(int(str(speech.configured["sample_rate"]))), asyncio.Queue[int]()
        listener = asyncio.create_task(listen(speech, speaker, finished))
        utterance = -1
        async for line in lines():
            utterance += 1
            speaker.stop()  # stop local playback at once; `replace` below stops the server
            replace = True
            async for piece in answer(line):
                await speech.write(piece, replace=replace)
                replace = False
            await speech.done()
        while utterance >= 0 and await finished.get() < utterance:
            pass
        listener.cancel()
        speaker.close()


asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "ws://127.0.0.1:8000"))
