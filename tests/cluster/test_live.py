"""Two replicas behind Serve's proxy: same bits, balance, limits, sockets, voices, a killed replica, and shutdown.

Needs the extra `cluster`; `make test-cluster` installs it. Without Ray, these tests are skipped.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path

import httpx
import pytest
from websockets.exceptions import ConnectionClosed

from legato.client.socket import AudioData, SpeechClient
from tests.cluster.live import LONG_TEXT, Cluster, cluster_of, replica_of, replica_processes, stop
from tests.conftest import TinyCheckpoint
from tests.server.openai.test_voices import HIGH, LOW
from tests.server.running import wait_for

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(find_spec("ray") is None, reason="needs Ray: make test-cluster"),
]


@pytest.fixture(scope="module")
def cluster(tiny_checkpoint: TinyCheckpoint, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with cluster_of(tmp_path_factory.mktemp("cluster"), tiny_checkpoint("tiny-base")) as running:
        yield running


def test_same_request_and_seed_give_the_same_bits_on_both_replicas(cluster: Cluster) -> None:
    answers: dict[str, set[str]] = {}
    for _ in range(8):
        response = cluster.speak("The same sentence.", seed=7)
        answers.setdefault(replica_of(response), set()).add(hashlib.sha256(response.content).hexdigest())
    assert len(answers) == 2
    assert len(set.union(*answers.values())) == 1
    # Control: another seed gives other samples.
    other = hashlib.sha256(cluster.speak("The same sentence.", seed=8).content).hexdigest()
    assert other not in set.union(*answers.values())


def test_models_have_one_fingerprint(cluster: Cluster) -> None:
    digests = {
        (model["id"], model["legato"]["fingerprint"]["digest"])
        for _ in range(6)
        for model in httpx.get(f"{cluster.url}/v1/models").json()["data"]
        if model["owned_by"] == "legato"
    }
    assert sorted(name for name, _ in digests) == ["embedded", "tiny"]


def test_questions_about_a_request_reach_its_replica(cluster: Cluster) -> None:
    replicas = set()
    for _ in range(10):
        response = cluster.speak("Hi.")
        replicas.add(replica_of(response))
        identity = response.headers["x-request-id"]
        assert "," not in identity
        record = httpx.get(f"{cluster.url}/v1/requests/{identity}")
        assert record.json()["status"] == "finished"
        report = {"first_bytes_ms": 10.0, "first_sound_ms": 20.0}
        assert httpx.post(f"{cluster.url}/v1/requests/{identity}/playout", json=report).status_code == 204
    assert len(replicas) == 2
    assert httpx.get(f"{cluster.url}/v1/requests/req_none-00").status_code == 404


def test_load_is_balanced(cluster: Cluster) -> None:
    with ThreadPoolExecutor(4) as pool:
        counts = Counter(pool.map(lambda number: replica_of(cluster.speak("Hello.", seed=number)), range(40)))
    assert sum(counts.values()) == 40
    assert max(counts.values()) <= 24, counts  # 20 each, with the delay of the reports


def test_full_cluster_refuses_with_retry_after_and_harms_nobody(cluster: Cluster) -> None:
    """Four slots and two places in queues: of twelve long requests, some wait and some are refused."""
    expected = cluster.speak(LONG_TEXT, seed=1).content
    with ThreadPoolExecutor(12) as pool:
        responses = list(pool.map(lambda _: cluster.speak(LONG_TEXT, seed=1), range(12)))
    refused = [response for response in responses if response.status_code == 429]
    assert {response.status_code for response in responses} == {200, 429}
    assert all(int(response.headers["retry-after"]) >= 1 for response in refused)
    assert all(response.content == expected for response in responses if response.status_code == 200)
    assert cluster.speak("Hi.").status_code == 200


def test_random_cancels_leave_the_others_unchanged(cluster: Cluster) -> None:
    expected = cluster.speak(LONG_TEXT[:130], seed=3).content
    generator = random.Random(5)
    leave_after = [generator.randrange(20_000) if generator.random() < 0.5 else None for _ in range(40)]

    def run(limit: int | None) -> bytes | None:
        body = {"input": LONG_TEXT[:130], "response_format": "pcm", "seed": 3}
        with httpx.stream("POST", f"{cluster.url}/v1/audio/speech", json=body, timeout=120) as response:
            if response.status_code == 429:
                return None
            received = b""
            for piece in response.iter_bytes():
                received += piece
                if limit is not None and len(received) > limit:
                    return None
            return received

    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(run, leave_after))
    complete = [result for result in results if result is not None]
    assert len(complete) >= 10
    assert all(result == expected for result in complete)
    wait_for(lambda: len(cluster.replicas_that_answer()) == 2, seconds=30)


def test_disconnect_frees_the_slot(cluster: Cluster) -> None:
    """Eight clients take everything and leave at once; the next eight requests are served."""

    def leave(_: int) -> None:
        body = {"input": LONG_TEXT * 3, "response_format": "pcm"}
        with httpx.stream("POST", f"{cluster.url}/v1/audio/speech", json=body, timeout=120) as response:
            if response.status_code == 200:
                next(response.iter_bytes())

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(leave, range(8)))
    left_s = time.monotonic()
    wait_for(lambda: cluster.speak("Hi.").status_code == 200, seconds=10)
    print(f"first answer {time.monotonic() - left_s:.2f} s after the clients left")
    statuses = [cluster.speak("Hi.").status_code for _ in range(8)]
    assert statuses == [200] * 8


def test_socket_streams_text_and_is_cancelled(cluster: Cluster) -> None:
    async def run() -> tuple[bytes, bool]:
        async with SpeechClient(cluster.url.replace("http", "ws"), {"seed": 11}) as speech:
            await speech.write("Hello there.")
            await speech.done()
            samples = b""
            async for event in speech.events():
                if isinstance(event, AudioData):
                    samples += event.samples.tobytes()
                elif event.type == "session.done":
                    break
            await speech.write(LONG_TEXT)
            cancelled = False
            async for event in speech.events():
                if isinstance(event, AudioData) and not cancelled:
                    await speech.cancel()
                    cancelled = True
                elif not isinstance(event, AudioData) and event.type == "input.cancelled":
                    return samples, True
        return samples, False

    samples, cancelled = asyncio.run(run())
    assert cancelled
    assert samples == cluster.speak("Hello there.", seed=11).content


def test_uploaded_voice_is_spoken_by_both_replicas_within_a_second(cluster: Cluster) -> None:
    for name, recording in (("Ann", LOW), ("Bob", HIGH)):
        uploaded = httpx.post(
            f"{cluster.url}/v1/audio/voices", data={"name": name}, files={"audio_sample": recording}, timeout=60
        )
        assert uploaded.status_code == 201
    time.sleep(1.0)
    fields = {"model": "tiny", "max_new_tokens": 4, "seed": 1}
    answers = [cluster.speak("A.", voice=name, **fields) for name in ("Ann", "Bob") * 6]
    assert len({replica_of(answer) for answer in answers}) == 2
    assert len({answer.content for answer in answers[::2]}) == 1
    assert answers[0].content != answers[1].content
    assert httpx.delete(f"{cluster.url}/v1/audio/voices/Ann").status_code == 200
    time.sleep(1.0)
    refused = [cluster.speak("A.", voice="Ann", **fields) for _ in range(6)]
    assert {answer.status_code for answer in refused} == {400}


def test_killed_replica_ends_its_streams_with_an_error_and_comes_back(cluster: Cluster) -> None:
    expected = cluster.speak(LONG_TEXT, seed=2).content
    victims = replica_processes()
    assert len(victims) == 2
    killed_s: list[float] = []

    def run(_: int) -> tuple[str, float]:
        received = b""
        body = {"input": LONG_TEXT, "response_format": "pcm", "seed": 2}
        try:
            with httpx.stream("POST", f"{cluster.url}/v1/audio/speech", json=body, timeout=60) as response:
                if response.status_code != 200:
                    return "refused", time.monotonic()
                for piece in response.iter_bytes():
                    received += piece
                    if not killed_s and len(received) > 20_000:
                        killed_s.append(time.monotonic())
                        os.kill(victims[0], signal.SIGKILL)
        except httpx.HTTPError:
            return "broken", time.monotonic()
        return ("complete" if received == expected else f"wrong: {len(received)} bytes"), time.monotonic()

    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(run, range(4)))
    outcomes = Counter(outcome for outcome, _ in results)
    # Never a response that ends as if it were whole.
    assert set(outcomes) <= {"complete", "broken"}, outcomes
    assert outcomes["complete"] >= 1
    assert outcomes["broken"] >= 1
    told_s = max(ended_s for outcome, ended_s in results if outcome == "broken") - killed_s[0]
    print(f"clients of the killed replica got an error after {told_s:.2f} s")
    assert told_s < 2.0
    started_s = time.monotonic()
    wait_for(lambda: len(replica_processes()) == 2, seconds=60)
    wait_for(lambda: len(cluster.replicas_that_answer()) == 2, seconds=60)
    print(f"two replicas again after {time.monotonic() - started_s:.1f} s")


def test_shutdown_finishes_streams_and_tells_idle_sockets(tiny_checkpoint: TinyCheckpoint, tmp_path: Path) -> None:
    with cluster_of(tmp_path, tiny_checkpoint("tiny-base")) as cluster:
        expected = cluster.speak(LONG_TEXT, seed=4).content

        async def idle() -> int:
            """The close code of an idle socket; 1012 (service restart) makes clients connect again."""
            async with SpeechClient(cluster.url.replace("http", "ws")) as speech:
                cluster.process.send_signal(signal.SIGTERM)
                with pytest.raises(ConnectionClosed) as closed:
                    async for _ in speech.events():
                        pass
            return closed.value.rcvd.code if closed.value.rcvd is not None else 0

        with ThreadPoolExecutor(1) as pool:
            speaking = pool.submit(cluster.speak, LONG_TEXT, seed=4)
            time.sleep(0.5)
            assert asyncio.run(asyncio.wait_for(idle(), 30)) == 1012
            assert speaking.result().content == expected
        assert stop(cluster.process) == 0
