"""`POST /v1/audio/speech/batch`: each item equals the same single request; failures stay with their item."""

from __future__ import annotations

import base64
import io
import json
import threading
import zipfile
from collections.abc import Iterator

import httpx
import pytest
import soundfile

from legato.api import load
from legato.config.server import ServerConfig
from tests.conftest import TinyCheckpoint
from tests.server.running import Running, running, slots_free, wait_for

ROUTE = "/v1/audio/speech/batch"
TEXTS = ["One.", "Two words.", "Three more words."]
SHARED: dict[str, object] = {"voice": "ryan", "response_format": "wav", "max_new_tokens": 3, "seed": 5}


@pytest.fixture(scope="module")
def web(speaker: Running) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=speaker.url, timeout=120) as client:
        yield client


def single(web: httpx.Client, text: str, **fields: object) -> bytes:
    answer = web.post("/v1/audio/speech", json={**SHARED, "input": text, "stream": False, **fields})
    assert answer.status_code == 200, answer.text
    return answer.content


def lines(answer: httpx.Response) -> list[dict[str, object]]:
    assert answer.status_code == 200, answer.text
    return [json.loads(line) for line in answer.text.splitlines()]


def audio(result: dict[str, object]) -> bytes:
    return base64.b64decode(str(result["audio_data"]))


def same_audio(one: bytes, other: bytes) -> bool:
    """Other batch sizes may change samples by one 16-bit step."""
    (a, a_hz), (b, b_hz) = (soundfile.read(io.BytesIO(data), dtype="int16") for data in (one, other))
    return a_hz == b_hz and len(a) == len(b) and int(abs(a.astype(int) - b).max()) <= 1


def test_each_item_equals_its_single_request(web: httpx.Client) -> None:
    items = [TEXTS[0], {"input": TEXTS[1], "id": "second"}, {"input": TEXTS[2], "voice": "vivian", "seed": 6}]
    *results, totals = lines(web.post(ROUTE, json={**SHARED, "items": items}))
    by_index = {result["index"]: result for result in results}
    assert sorted(by_index, key=str) == [0, 1, 2]
    assert by_index[1]["id"] == "second"
    expected = [single(web, TEXTS[0]), single(web, TEXTS[1]), single(web, TEXTS[2], voice="vivian", seed=6)]
    assert all(same_audio(audio(by_index[index]), data) for index, data in enumerate(expected))
    assert {result["finish_reason"] for result in results} == {"max_frames"}
    assert (totals["total"], totals["done"], totals["failed"], totals["share"]) == (3, 3, 0, 1.0)
    record = web.get(f"/v1/requests/{by_index[1]['request_id']}").json()
    assert (record["status"], record["route"]) == ("finished", ROUTE)


BAD: list[tuple[object, str]] = [
    ({"input": "Words.", "voice": "nobody"}, "unknown_voice"),
    ({"input": "..."}, "unspeakable_text"),
    ({"voice": "ryan"}, "invalid_request"),
    ({"input": "Words.", "response_format": "midi"}, "unsupported"),
    ({"input": "Words.", "model": "gpt-5"}, "model_not_found"),
    ({"input": 7}, "invalid_request"),
    ({"input": "w " * 3000}, "too_long"),
    ({"input": "Words.", "speed": 100}, "invalid_request"),
]


@pytest.mark.parametrize("output", ["jsonl", "json", "sse", "zip"])
def test_failures_stay_with_their_item(web: httpx.Client, output: str) -> None:
    items = ["First.", *(item for item, _ in BAD), "Last."]
    answer = web.post(ROUTE, json={**SHARED, "items": items, "output": output})
    results = results_of(answer, output)
    codes = [result["error"]["code"] if result["status"] == "failed" else None for result in results]  # type: ignore[index]
    assert codes == [None, *(code for _, code in BAD), None]


def results_of(answer: httpx.Response, output: str) -> list[dict[str, object]]:
    """The results in the order of the items."""
    assert answer.status_code == 200, answer.text
    if output == "zip":
        with zipfile.ZipFile(io.BytesIO(answer.content)) as archive:
            results: list[dict[str, object]] = json.loads(archive.read("results.json"))["results"]
        return results
    if output == "json":
        found: list[dict[str, object]] = answer.json()["results"]
        return found
    if output == "sse":
        events = [json.loads(line.removeprefix("data: ")) for line in answer.text.split("\n\n") if line]
        items = [event for event in events if event["type"] == "speech.batch.item"]
    else:
        items = lines(answer)[:-1]
    return sorted(items, key=lambda result: int(result["index"]))


def test_archive_has_a_file_for_each_item(web: httpx.Client) -> None:
    items = [{"input": TEXTS[0], "id": "../a b\\c"}, {"input": TEXTS[1], "response_format": "opus"}, "..."]
    answer = web.post(ROUTE, json={**SHARED, "items": items}, headers={"accept": "application/zip"})
    assert answer.headers["content-type"] == "application/zip"
    with zipfile.ZipFile(io.BytesIO(answer.content)) as archive:
        assert archive.testzip() is None
        assert sorted(archive.namelist()) == ["0000-a-b-c.wav", "0001.ogg", "results.json"]
        assert same_audio(archive.read("0000-a-b-c.wav"), single(web, TEXTS[0]))
        manifest = json.loads(archive.read("results.json"))
    assert [result.get("file") for result in manifest["results"]] == ["0000-a-b-c.wav", "0001.ogg", None]
    assert manifest["failed"] == 1


def test_events_report_progress(web: httpx.Client) -> None:
    answer = web.post(ROUTE, json={**SHARED, "items": TEXTS}, headers={"accept": "text/event-stream"})
    assert answer.headers["content-type"].startswith("text/event-stream")
    events = [json.loads(block.removeprefix("data: ")) for block in answer.text.split("\n\n") if block]
    shares = [event["share"] for event in events if event["type"] == "speech.batch.progress"]
    assert len(shares) >= 3
    assert shares == sorted(shares)
    assert shares[-1] == 1.0
    assert events[-1]["type"] == "speech.batch.done"
    assert events[-1]["audio_s"] == pytest.approx(3 * 3 * 0.08)


def test_results_arrive_before_the_batch_is_finished(web: httpx.Client) -> None:
    """The first line is here while a long item is still being generated."""
    items = [{"input": "Short."}, {"input": "Long.", "max_new_tokens": 150}]
    with web.stream("POST", ROUTE, json={**SHARED, "items": items}) as answer:
        kinds = [json.loads(line) for line in answer.iter_lines()]
    assert [result.get("index") for result in kinds] == [0, 1, None]
    assert kinds[0]["request_id"].endswith("-0")


def test_client_reads_results_as_they_are_ready(web: httpx.Client, speaker: Running) -> None:
    results = {result["index"]: result for result in speaker.client().speak_batch(TEXTS, **SHARED)}
    assert all(same_audio(audio(results[index]), single(web, text)) for index, text in enumerate(TEXTS))


def test_word_times_of_a_batch(reader: Running) -> None:
    body = {"items": ["One two."], "response_format": "pcm", "word_timestamps": True, "output": "json"}
    result = httpx.post(f"{reader.url}{ROUTE}", json=body, timeout=60).json()["results"][0]
    assert [word["text"] for word in result["words"]] == ["One", "two"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({}, "items"),
        ({"items": []}, "items"),
        ({"items": "One."}, "items"),
        ({"items": [7]}, "items"),
        ({"items": [None]}, "items"),
        ({"items": ["a"] * 1001}, "items"),
        ({"items": [{"input": "a", "id": "x" * 300}]}, "items"),
        ({"items": ["One."], "output": "tar"}, "output"),
        ({"items": ["w " * 2499] * 41}, "items"),
    ],
)
def test_malformed_batches_are_refused_as_a_whole(web: httpx.Client, fields: dict[str, object], param: str) -> None:
    answer = web.post(ROUTE, json=fields)
    assert 400 <= answer.status_code < 500
    assert answer.json()["error"]["param"] == param


def test_other_content_types_are_refused(web: httpx.Client) -> None:
    assert web.post(ROUTE, data={"items": "One."}).status_code == 415


def test_disconnect_cancels_the_streams(web: httpx.Client, speaker: Running) -> None:
    items = [{"input": "Long.", "max_new_tokens": 150}] * 8
    with web.stream("POST", ROUTE, json={**SHARED, "items": items, "output": "sse"}) as answer:
        next(answer.iter_lines())
    wait_for(lambda: slots_free(speaker.tts))


def test_a_batch_waits_when_the_queue_is_full(tiny_checkpoint: TinyCheckpoint) -> None:
    """Two batches and the limit of streams of one client: no item fails."""
    config = ServerConfig(warm_up=False, client_streams=2)
    body = {**SHARED, "items": TEXTS * 3, "output": "json"}
    with load(tiny_checkpoint("tiny-custom-voice"), max_num_seqs=2, max_queue=1) as tts, running(tts, config) as server:
        answers: list[httpx.Response] = []

        def post() -> None:
            answers.append(httpx.post(f"{server.url}{ROUTE}", json=body, timeout=120))

        threads = [threading.Thread(target=post) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert [answer.json()["failed"] for answer in answers] == [0, 0]
