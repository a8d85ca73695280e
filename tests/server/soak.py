"""Rounds of parallel streams of which half are broken off: are the others whole, is memory flat, is health answered?

`python -m tests.server.soak` runs 50 rounds of 20 against a server in a process of its own, which computes in
deterministic mode, so that every survivor can be compared to the bit with the same request spoken alone.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import torch

from legato.api import Legato
from legato.client.http import Client
from legato.client.socket import Sound, SpeechClient
from legato.config.engine import EngineConfig
from legato.config.server import ServerConfig
from legato.models.load import load_model
from legato.models.synth import write_checkpoint
from legato.server.app import create_app
from legato.server.run import serve

SLOTS, QUEUE = 8, 64
TEXTS = ("Some words to speak.", "And a few more of them.", "Nothing.", "The last one, or so it seems.")
PERIOD_S = 0.02


@dataclass(frozen=True, slots=True)
class Ask:
    """One visit: what is spoken, over which route, and after how many bytes its client leaves (-1: never)."""

    text: str
    seed: int
    frames: int
    route: str
    leave_after: int

    @property
    def options(self) -> dict[str, object]:
        return {"voice": "ryan", "seed": self.seed, "max_new_tokens": self.frames, "non_streaming_mode": False}

    @property
    def stays(self) -> bool:
        return self.leave_after < 0


@dataclass(slots=True)
class Outcome:
    """What was seen."""

    whole: int = 0
    left: int = 0
    wrong: list[str] = field(default_factory=list)
    health_s: list[float] = field(default_factory=list)
    memory_mib: list[float] = field(default_factory=list)
    """After each round."""

    def health_percentile_ms(self, percent: float) -> float:
        """Of the answers to /health."""
        ordered = sorted(self.health_s)
        return 1000 * ordered[min(len(ordered) - 1, round(percent / 100 * len(ordered)))]


def asks(rounds: int, streams: int, seed: int = 0) -> Iterator[list[Ask]]:
    """The visits of each round: the same for the same numbers."""
    chance = random.Random(seed)
    for _ in range(rounds):
        yield [
            Ask(
                text=chance.choice(TEXTS),
                seed=chance.randrange(3),
                frames=chance.choice((3, 5, 8)),
                route=chance.choice(("bytes", "events", "socket")),
                leave_after=chance.choice((-1, chance.randrange(12_000))),
            )
            for _ in range(streams)
        ]


def visit(url: str, ask: Ask) -> bytes:
    """What the client heard until the end, or until it left."""
    if ask.route == "socket":
        return asyncio.run(asyncio.wait_for(_over_socket(url, ask), 120))
    client, heard = Client(url), bytearray()
    speak = client.speak_events if ask.route == "events" else client.speak
    with speak(ask.text, response_format="pcm", **ask.options) as body:
        for piece in (event.audio for event in body.events()) if ask.route == "events" else body:
            heard += piece
            if not ask.stays and len(heard) > ask.leave_after:
                break
    return bytes(heard)


async def _over_socket(url: str, ask: Ask) -> bytes:
    heard = bytearray()
    async with SpeechClient(url.replace("http", "ws"), ask.options) as speech:
        await speech.write(ask.text)
        await speech.done()
        async for event in speech.events():
            if isinstance(event, Sound):
                heard += event.data
            elif event.type == "session.done":
                break
            if not ask.stays and len(heard) > ask.leave_after:
                break
    return bytes(heard)


@contextmanager
def watched_health(url: str, into: list[float]) -> Iterator[None]:
    """Ask /health every `PERIOD_S`, each time over a connection of its own."""
    stop = threading.Event()

    def watch() -> None:
        while not stop.wait(PERIOD_S):
            began_s = time.perf_counter()
            assert Client(url).health()
            into.append(time.perf_counter() - began_s)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def soak(url: str, rounds: int, streams: int, *, pid: int) -> Outcome:
    """Run the rounds against the server at `url`, whose process is `pid`."""
    outcome = Outcome()
    alone: dict[Ask, bytes] = {}
    with ThreadPoolExecutor(streams) as pool:
        for together in asks(rounds, streams):
            wanted = [Ask(ask.text, ask.seed, ask.frames, "bytes", -1) for ask in together]
            alone |= {ask: visit(url, ask) for ask in set(wanted) - set(alone)}
            with watched_health(url, outcome.health_s):
                heard = list(pool.map(lambda ask: visit(url, ask), together))
            for ask, plain, data in zip(together, wanted, heard, strict=True):
                outcome.whole, outcome.left = outcome.whole + ask.stays, outcome.left + (not ask.stays)
                truth = alone[plain]
                if not (data == truth if ask.stays else truth.startswith(data)):
                    outcome.wrong.append(f"{ask}: {len(data)} bytes")
            outcome.memory_mib.append(memory_mib(pid))
    return outcome


def memory_mib(pid: int) -> float:
    """Resident memory of a process."""
    words = Path(f"/proc/{pid}/status").read_text().split("VmRSS:")[1].split()
    return int(words[0]) / 1024


def deterministic(folder: Path) -> Legato:
    """A tiny model that computes one row a call."""
    model = load_model(folder, talker_dtype="float32", codec_dtype="float32", device="cpu")
    config = EngineConfig(streams=SLOTS, kv_slots=SLOTS + 1, positions=256, queue=QUEUE, deterministic=True)
    return Legato(model, config)


@contextmanager
def server_process() -> Iterator[tuple[str, int]]:
    """A server with a tiny model: its address and its process."""
    with (
        tempfile.TemporaryDirectory() as folder,
        subprocess.Popen(
            [sys.executable, "-m", "tests.server.soak", "--serve", folder], stdout=subprocess.PIPE, text=True
        ) as process,
    ):
        try:
            assert process.stdout is not None
            url = process.stdout.readline().strip()
            while not Client(url).ready():
                time.sleep(0.05)
            yield url, process.pid
        finally:
            process.terminate()
            process.wait(60)


def _serve(folder: Path) -> None:
    torch.set_num_threads(1)
    write_checkpoint("tiny-custom-voice", folder / "model")
    config = ServerConfig(port=0)
    with deterministic(folder / "model") as tts:
        serve(create_app(tts, config), config, listening=lambda port: print(f"http://127.0.0.1:{port}", flush=True))


def main() -> int:
    """Soak, print the figures, fail where they are not good enough."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--streams", type=int, default=20)
    parser.add_argument("--serve", type=Path)
    options = parser.parse_args()
    if options.serve:
        _serve(options.serve)
        return 0
    with server_process() as (url, pid):
        began_s = time.monotonic()
        outcome = soak(url, options.rounds, options.streams, pid=pid)
        spent_s = time.monotonic() - began_s
    settled, last = outcome.memory_mib[len(outcome.memory_mib) // 5], outcome.memory_mib[-1]
    print(f"{options.rounds} rounds of {options.streams} streams on {SLOTS} slots in {spent_s:.0f} s")
    print(f"{outcome.whole} stayed and {outcome.left} left; {len(outcome.wrong)} heard what they should not have")
    print(f"memory {settled:.0f} MiB after a fifth of the rounds, {last:.0f} MiB at the end")
    figures = ", ".join(f"p{p:g} {outcome.health_percentile_ms(p):.1f} ms" for p in (50, 99, 100))
    print(f"/health asked {len(outcome.health_s)} times meanwhile: {figures}")
    for wrong in outcome.wrong[:10]:
        print(wrong)
    return int(bool(outcome.wrong) or last > 1.05 * settled or outcome.health_percentile_ms(99) > 100)


if __name__ == "__main__":
    sys.exit(main())
