"""Soak test: rounds of parallel streams, half of which disconnect early.

`python -m tests.server.soak` runs 50 rounds of 20 streams against a server in its own process. The server runs in
deterministic mode, so each complete stream must equal the same request served alone, bit for bit. Memory must stay flat
and /health must respond.
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
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from legato.api import Legato
from legato.backends.select import load_backend
from legato.client.http import Client
from legato.client.socket import AudioData, SpeechClient
from legato.config.engine import EngineConfig
from legato.config.server import ServerConfig
from legato.server.app import create_app
from legato.server.uvicorn_server import serve
from legato.weights.random_checkpoint import write_checkpoint

SLOTS, QUEUE = 8, 64
TEXTS = ("Some words to speak.", "And a few more of them.", "Nothing.", "The last one, or so it seems.")
PERIOD_S = 0.02


@dataclass(frozen=True, slots=True)
class SoakRequest:
    """One request and its route. `disconnect_after`: bytes after which the client disconnects; None: it stays."""

    text: str
    seed: int
    frames: int
    route: str
    disconnect_after: int | None

    @property
    def options(self) -> dict[str, object]:
        return {"voice": "ryan", "seed": self.seed, "max_new_tokens": self.frames, "non_streaming_mode": False}

    @property
    def stays(self) -> bool:
        return self.disconnect_after is None


@dataclass(slots=True)
class SoakResult:
    """Results of all rounds."""

    complete: int = 0
    disconnected: int = 0
    mismatches: list[str] = field(default_factory=list)
    health_s: list[float] = field(default_factory=list)
    memory_mib: list[float] = field(default_factory=list)
    """After each round."""

    def health_percentile_ms(self, percent: float) -> float:
        """Percentile of the response times of /health."""
        ordered = sorted(self.health_s)
        return 1000 * ordered[min(len(ordered) - 1, round(percent / 100 * len(ordered)))]


def soak_requests(rounds: int, streams: int, seed: int = 0) -> Iterator[list[SoakRequest]]:
    """The requests of each round, determined by the arguments."""
    rng = random.Random(seed)
    for _ in range(rounds):
        yield [
            SoakRequest(
                text=rng.choice(TEXTS),
                seed=rng.randrange(3),
                frames=rng.choice((3, 5, 8)),
                route=rng.choice(("bytes", "events", "socket")),
                disconnect_after=rng.choice((None, rng.randrange(12_000))),
            )
            for _ in range(streams)
        ]


def run_request(url: str, request: SoakRequest) -> bytes:
    """The audio that the client receives until the end or until it disconnects."""
    if request.route == "socket":
        return asyncio.run(asyncio.wait_for(_over_socket(url, request), 120))
    client, received = Client(url), bytearray()
    speak = client.speak_events if request.route == "events" else client.speak
    with speak(request.text, response_format="pcm", **request.options) as body:
        for piece in (event.audio for event in body.events()) if request.route == "events" else body:
            received += piece
            if request.disconnect_after is not None and len(received) > request.disconnect_after:
                break
    return bytes(received)


async def _over_socket(url: str, request: SoakRequest) -> bytes:
    received = bytearray()
    async with SpeechClient(url.replace("http", "ws"), request.options) as speech:
        await speech.write(request.text)
        await speech.done()
        async for event in speech.events():
            if isinstance(event, AudioData):
                received += event.data
            elif event.type == "session.done":
                break
            if request.disconnect_after is not None and len(received) > request.disconnect_after:
                break
    return bytes(received)


@contextmanager
def watched_health(url: str, into: list[float]) -> Iterator[None]:
    """Request /health every `PERIOD_S`, each time on a new connection; response times go to `into`."""
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


def soak(url: str, rounds: int, streams: int, *, pid: int) -> SoakResult:
    """Run the rounds against the server at `url`, whose process is `pid`."""
    result = SoakResult()
    expected: dict[SoakRequest, bytes] = {}
    with ThreadPoolExecutor(streams) as pool:
        for requests in soak_requests(rounds, streams):
            references = [replace(request, route="bytes", disconnect_after=None) for request in requests]
            for reference in set(references) - set(expected):
                expected[reference] = run_request(url, reference)
            with watched_health(url, result.health_s):
                answers = list(pool.map(lambda request: run_request(url, request), requests))
            for request, reference, data in zip(requests, references, answers, strict=True):
                if request.stays:
                    result.complete += 1
                    equal = data == expected[reference]
                else:
                    result.disconnected += 1
                    equal = expected[reference].startswith(data)
                if not equal:
                    result.mismatches.append(f"{request}: {len(data)} bytes")
            result.memory_mib.append(memory_mib(pid))
    return result


def memory_mib(pid: int) -> float:
    """Resident memory of a process."""
    words = Path(f"/proc/{pid}/status").read_text().split("VmRSS:")[1].split()
    return int(words[0]) / 1024


def load_deterministic(folder: Path) -> Legato:
    """A tiny model in deterministic mode."""
    backend = load_backend(folder, dtype="float32", codec_dtype="float32")
    config = EngineConfig(max_num_seqs=SLOTS, kv_slots=SLOTS + 1, max_seq_len=256, max_queue=QUEUE, deterministic=True)
    return Legato(backend, config)


@contextmanager
def server_process() -> Iterator[tuple[str, int]]:
    """A server with a tiny model in its own process; yields URL and process id."""
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
    with load_deterministic(folder / "model") as tts:
        serve(create_app(tts, config), config, on_listening=lambda port: print(f"http://127.0.0.1:{port}", flush=True))


def main() -> int:
    """Run the soak test and print its results; exit status 1 if a limit is exceeded."""
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
        result = soak(url, options.rounds, options.streams, pid=pid)
        elapsed_s = time.monotonic() - began_s
    baseline_mib, final_mib = result.memory_mib[len(result.memory_mib) // 5], result.memory_mib[-1]
    print(f"{options.rounds} rounds of {options.streams} streams on {SLOTS} slots in {elapsed_s:.0f} s")
    print(f"{result.complete} complete, {result.disconnected} disconnected, {len(result.mismatches)} with wrong audio")
    print(f"memory {baseline_mib:.0f} MiB after a fifth of the rounds, {final_mib:.0f} MiB at the end")
    figures = ", ".join(f"p{p:g} {result.health_percentile_ms(p):.1f} ms" for p in (50, 99, 100))
    print(f"{len(result.health_s)} requests of /health during the test: {figures}")
    for mismatch in result.mismatches[:10]:
        print(mismatch)
    return int(bool(result.mismatches) or final_mib > 1.05 * baseline_mib or result.health_percentile_ms(99) > 100)


if __name__ == "__main__":
    sys.exit(main())
